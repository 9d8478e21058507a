//! Who a request is from and what it may name: key, tenant, feature, user, class, deadline. The one place where headers become a caller;
//! handlers take a [`Caller`], so none can forget to ask.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::FromRequestParts,
    http::{HeaderMap, header, request::Parts},
};

use super::{
    asker::{self, Asker},
    keys::{Key, KeyRing},
    page::check_page,
};
use crate::{
    journal::query::TenantScope,
    model::{
        contract,
        envelope::ErrorCode,
        name::{NAME_BYTES_MAX, Name},
    },
    policy::compartment::{
        directory::Names,
        settings::{CLASS_USUAL, CLASSES},
    },
    runtime::{
        call::{CallContext, LadderUse},
        journal::RunOwner,
        ports::Clock,
    },
    serve::{
        answer::{failure::Failure, trace::RequestFacts},
        state::AppState,
    },
    settings::keys::{Acting, Role},
};

/// The caller's own user; taken only from keys that speak for others.
pub const USER: &str = "x-watertight-user";
/// How the names of all headers begin that say more of a caller than its key.
const OURS: &str = "x-watertight-";
/// The other header that a key may come in.
const API_KEY: &str = "x-api-key";
/// The longest name of a user, in bytes.
const USER_BYTES_MAX: usize = 256;
/// No caller's deadline is taken for longer.
const DEADLINE_MAX: Duration = Duration::from_secs(7 * 24 * 3_600);

/// Who asks, checked.
#[derive(Debug, Clone)]
pub struct Caller {
    /// The key; `None` where the service has none.
    pub key: Option<Arc<Key>>,
    /// Whose request it is.
    pub tenant: Option<String>,
    /// For which feature.
    pub feature: Option<String>,
    /// The class; `None` = the usual one.
    pub priority: Option<String>,
    /// The caller's own user.
    pub user: Option<String>,
    /// How long an answer is of use, if the caller said so.
    pub deadline: Option<Duration>,
    /// Whether something may stand in for an agent's own answer.
    pub ladder: LadderUse,
    /// Trace and language.
    pub facts: RequestFacts,
    /// What its headers name: a body may name the same, not another one.
    in_headers: Named,
}

/// What a request names beside its content, before it is known whether it may.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Named {
    /// The tenant.
    pub tenant: Option<String>,
    /// The feature.
    pub feature: Option<String>,
    /// The class.
    pub priority: Option<String>,
    /// The user.
    pub user: Option<String>,
}

impl Named {
    /// A request that names one in a header and another one in its body is nobody's in particular.
    fn check_against(&self, body: &Self) -> Result<(), Failure> {
        for (what, header, in_header, in_body) in [
            ("tenant", contract::TENANT, &self.tenant, &body.tenant),
            ("feature", contract::FEATURE, &self.feature, &body.feature),
            ("priority", contract::PRIORITY, &self.priority, &body.priority),
            ("user", USER, &self.user, &body.user),
        ] {
            if let (Some(in_header), Some(in_body)) = (in_header, in_body)
                && in_header != in_body
            {
                let message = format!("header {header} names {what} {in_header:?}, the body names {in_body:?}");
                return Err(Failure::invalid(message));
            }
        }
        Ok(())
    }
}

impl Caller {
    /// Whether this caller sees all tenants and may act on agents. Without keys everybody who reaches the service may.
    pub fn is_operator(&self) -> bool {
        self.key.as_ref().is_none_or(|key| key.role == Role::Operator)
    }

    /// Refuses all but operators.
    pub fn must_be_operator(&self) -> Result<(), Failure> {
        if self.is_operator() { Ok(()) } else { Err(Failure::forbidden("this key is no operator's")) }
    }

    /// Whether things of `tenant` are this caller's to see.
    pub fn sees(&self, tenant: Option<&str>) -> bool {
        self.is_operator() || self.tenant.as_deref() == tenant
    }

    /// Whose things a query of this caller may see.
    pub fn scope(&self) -> TenantScope {
        if self.is_operator() { TenantScope::All } else { TenantScope::One(self.tenant.clone()) }
    }

    /// The key's name.
    pub fn key_name(&self) -> Option<&str> {
        self.key.as_ref().map(|key| key.name.as_str())
    }

    /// Who it is where askers are counted apart: its tenant, else its key. `None` where there are no keys: it is the only one.
    pub fn asker(&self) -> Option<String> {
        let key = self.key_name()?;
        Some(self.tenant.as_deref().map_or_else(|| asker::of_key(key), asker::of_tenant))
    }

    /// The same caller for what a request's body names; refused where the key does not allow it, or a header names another one. What the
    /// body leaves out stays as the headers said.
    pub fn naming(self, named: Named) -> Result<Self, Failure> {
        self.in_headers.check_against(&named)?;
        self.named(named)
    }

    fn named(mut self, named: Named) -> Result<Self, Failure> {
        let key = self.key.as_deref();
        if let Some(tenant) = named.tenant {
            self.tenant = Some(allowed_tenant(key, tenant)?);
        }
        if let Some(feature) = named.feature {
            self.feature = Some(allowed_feature(key, feature)?);
        }
        if let Some(priority) = named.priority {
            self.priority = Some(allowed_priority(key, priority)?);
        }
        if let Some(user) = named.user {
            self.user = Some(allowed_user(key, user)?);
        }
        Ok(self)
    }

    /// What a run of this caller carries.
    pub fn owner(&self) -> RunOwner {
        RunOwner {
            tenant: self.tenant.clone(),
            feature: self.feature.clone(),
            priority: self.priority.clone(),
            key_id: self.key_name().map(str::to_owned),
            user: self.user.clone(),
            traceparent: Some(self.facts.traceparent.clone()),
        }
    }

    /// What a direct call of this caller carries; the deadline is counted from now.
    pub fn call_context(&self, clock: &dyn Clock, idempotency_key: Option<String>) -> CallContext {
        CallContext {
            run_id: None,
            step: None,
            idempotency_key,
            traceparent: Some(self.facts.traceparent.clone()),
            tenant: self.tenant.clone(),
            feature: self.feature.clone(),
            priority: self.priority.clone(),
            key_id: self.key_name().map(str::to_owned),
            user: self.user.clone(),
            prompt: None,
            deadline: self.deadline.map(|deadline| clock.now().after(deadline)),
            timeout: None,
            asked: None,
            ladder: self.ladder,
            names: Names::Known,
            places_asked: Vec::new(),
            waited: Duration::ZERO,
        }
    }
}

impl FromRequestParts<AppState> for Caller {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, Failure> {
        let facts = parts.extensions.get::<RequestFacts>().cloned();
        let facts = facts.unwrap_or_else(|| RequestFacts::of(&parts.headers, state.language));
        let key = key_of(parts, state)?;
        let caller = caller_of(&parts.headers, key, facts)?;
        if let Some(asker) = parts.extensions.get::<Asker>() {
            asker.is(caller.asker());
        }
        Ok(caller)
    }
}

/// The key of a request; an error if it has none and one is needed, or one that is not known.
fn key_of(parts: &Parts, state: &AppState) -> Result<Option<Arc<Key>>, Failure> {
    if state.keys.is_empty() {
        return check_page(parts, &state.settings).map(|()| None);
    }
    check_one_key(&parts.headers, &state.keys)?;
    let Some(text) = given_key(&parts.headers) else {
        return Err(Failure::new(
            ErrorCode::Unauthorized,
            "a key is needed: `Authorization: Bearer ...` or `x-api-key`",
        ));
    };
    match state.keys.find(text) {
        Some(key) => Ok(Some(key)),
        None => Err(Failure::new(ErrorCode::Unauthorized, "this key is not known")),
    }
}

/// Two keys in one request are one too many: somebody on its way may go by the other one. No word of theirs is repeated.
fn check_one_key(headers: &HeaderMap, keys: &KeyRing) -> Result<(), Failure> {
    for name in [header::AUTHORIZATION.as_str(), API_KEY] {
        let mut values = headers.get_all(name).iter();
        if values.next().is_some_and(|first| values.any(|other| other != first)) {
            return Err(Failure::invalid(format!("header {name} is there twice, with two values")));
        }
    }
    let plain = headers.get(API_KEY).and_then(|value| value.to_str().ok());
    let differ = plain.zip(given_key(headers)).filter(|(plain, given)| plain != given);
    if let Some((plain, given)) = differ
        && let (Some(plain), Some(given)) = (keys.find(plain), keys.find(given))
        && plain.name != given.name
    {
        return Err(Failure::invalid(format!("authorization and {API_KEY} hold two different keys")));
    }
    Ok(())
}

/// The key's text.
pub(super) fn given_key(headers: &HeaderMap) -> Option<&str> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).and_then(|value| {
        let (scheme, token) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    bearer.or_else(|| headers.get(API_KEY)?.to_str().ok())
}

fn caller_of(headers: &HeaderMap, key: Option<Arc<Key>>, facts: RequestFacts) -> Result<Caller, Failure> {
    // Most requests say nothing beside their key.
    let headers = headers.keys().any(|name| name.as_str().starts_with(OURS)).then_some(headers);
    let text = |name| headers.map_or(Ok(None), |headers| text(headers, name));
    let named = Named {
        tenant: text(contract::TENANT)?,
        feature: text(contract::FEATURE)?,
        priority: text(contract::PRIORITY)?,
        user: text(USER)?,
    };
    let own = |name: Option<&Name>| name.map(Name::to_string);
    let caller = Caller {
        in_headers: named.clone(),
        tenant: own(key.as_ref().and_then(|key| key.tenant.as_ref())),
        feature: own(key.as_ref().and_then(|key| key.feature.as_ref())),
        priority: key.as_ref().and_then(|key| lower_than_usual(key)),
        user: None,
        deadline: text(contract::DEADLINE_MS)?.as_deref().map(deadline_of).transpose()?,
        ladder: ladder_of(text(contract::LADDER)?.as_deref())?,
        facts,
        key,
    };
    caller.named(named)
}

fn text(headers: &HeaderMap, name: &str) -> Result<Option<String>, Failure> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if let Some(other) = values.find(|other| *other != value) {
        return Err(Failure::invalid(format!("header {name} is there twice: {value:?} and {other:?}")));
    }
    let text = std::str::from_utf8(value.as_bytes()).map(str::trim);
    text.map(|text| Some(text.to_owned())).map_err(|_| Failure::invalid(format!("header {name} is not UTF-8")))
}

fn deadline_of(text: &str) -> Result<Duration, Failure> {
    match text.parse::<u64>() {
        Ok(0) | Err(_) => {
            Err(Failure::invalid(format!("header {}: must be milliseconds, at least 1", contract::DEADLINE_MS)))
        }
        Ok(milliseconds) => Ok(Duration::from_millis(milliseconds).min(DEADLINE_MAX)),
    }
}

/// Whether something may stand in for the agent's own answer.
fn ladder_of(text: Option<&str>) -> Result<LadderUse, Failure> {
    match text {
        None | Some("on") => Ok(LadderUse::Walk),
        Some("off") => Ok(LadderUse::Never),
        Some(_) => Err(Failure::invalid(format!("header {}: must be on or off", contract::LADDER))),
    }
}

fn speaks_for_others(key: Option<&Key>) -> bool {
    key.is_none_or(|key| key.acting == Acting::ForOthers)
}

fn allowed_tenant(key: Option<&Key>, tenant: String) -> Result<String, Failure> {
    let is_own = key.and_then(|key| key.tenant.as_ref()).is_some_and(|own| own.as_str() == tenant);
    if !is_own && !speaks_for_others(key) {
        return Err(Failure::forbidden("this key may not name a tenant (`may_act_for`)"));
    }
    checked_name("tenant", tenant)
}

fn allowed_feature(key: Option<&Key>, feature: String) -> Result<String, Failure> {
    let features = key.and_then(|key| key.features.as_ref());
    if features.is_some_and(|features| features.iter().all(|known| known.as_str() != feature)) {
        return Err(Failure::forbidden(format!("this key may not name feature {feature:?}")));
    }
    checked_name("feature", feature)
}

fn checked_name(what: &str, text: String) -> Result<String, Failure> {
    match Name::try_new(&text) {
        Ok(_) => Ok(text),
        Err(_) => Err(Failure::invalid(format!(
            "{what} must be a name: 1 to {NAME_BYTES_MAX} letters, digits, '-', '_' or '.', the first a letter or digit"
        ))),
    }
}

fn allowed_priority(key: Option<&Key>, priority: String) -> Result<String, Failure> {
    if !CLASSES.contains(&priority.as_str()) {
        return Err(Failure::invalid(format!("priority must be one of {}", CLASSES.join(", "))));
    }
    match key {
        Some(key) if !key.priority_max.allows(&priority) => {
            Err(Failure::forbidden(format!("this key may ask for {} at most", key.priority_max.as_str())))
        }
        _ => Ok(priority),
    }
}

/// Where a key's highest class is under the usual one, it is what its requests have.
fn lower_than_usual(key: &Key) -> Option<String> {
    (!key.priority_max.allows(CLASS_USUAL)).then(|| key.priority_max.as_str().to_owned())
}

fn allowed_user(key: Option<&Key>, user: String) -> Result<String, Failure> {
    if !speaks_for_others(key) {
        return Err(Failure::forbidden("this key may not name a user (`may_act_for`)"));
    }
    if user.is_empty() || user.len() > USER_BYTES_MAX || user.chars().any(char::is_control) {
        return Err(Failure::invalid(format!("user must be 1 to {USER_BYTES_MAX} bytes of text")));
    }
    Ok(user)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_names_begin_as_is_looked_for() {
        let names = [contract::TENANT, contract::FEATURE, contract::PRIORITY, contract::DEADLINE_MS, contract::LADDER];
        assert!(names.iter().chain([&USER]).all(|name| name.starts_with(OURS)));
    }
}
