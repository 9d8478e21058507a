//! The ladders of a runtime: each agent's own, and what features say instead. Plain values, replaced as a whole by a reload; walking them
//! is the business of `ladder`.

use std::{collections::HashMap, sync::Arc};

use serde_json::Value;

use crate::{
    model::{envelope::Envelope, name::Name, run::Cause},
    policy::ladder::{Failure, Fault, Ladder, LighterTarget, Rung, RungRule},
};

/// A text for a person, in the languages that there are.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize)]
pub struct Notice {
    /// In Korean.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ko: Option<String>,
    /// In English.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub en: Option<String>,
}

impl Notice {
    /// Gives an error this text for people. Each answer chooses its own language later; until then it is the English one.
    pub(crate) fn put_into(&self, envelope: &mut Envelope) {
        envelope.details.insert("notice".to_owned(), serde_json::json!(self));
        if let Some(text) = self.en.as_ref().or(self.ko.as_ref()) {
            envelope.user_message.clone_from(text);
        }
    }
}

/// A ladder as configured, for an agent or a feature.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LadderSettings {
    /// From the first rung that is tried to the last; empty = none.
    pub rungs: Vec<RungRule>,
    /// Who takes a call over on the lighter rung. A feature leaves that to each agent.
    pub lighter: Vec<LighterTarget>,
    /// The value of the default rung. A feature without one leaves that to each agent.
    pub default: Option<Arc<Value>>,
    /// The text of the notice. A feature without one leaves that to each agent.
    pub notice: Option<Arc<Notice>>,
}

/// The ladders of all agents and features.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Ladders {
    /// By agent.
    pub agents: HashMap<Name, LadderSettings>,
    /// By feature: its rungs stand instead of the agent's.
    pub features: HashMap<Name, LadderSettings>,
}

/// The ladder of one call.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct CallLadder {
    pub(crate) ladder: Ladder,
    pub(crate) default: Option<Arc<Value>>,
    pub(crate) notice: Option<Arc<Notice>>,
}

impl Ladders {
    /// Whether a call of this agent and feature has a ladder.
    pub(crate) fn has(&self, agent: &Name, feature: Option<&str>) -> bool {
        let of_feature = feature.and_then(|feature| self.features.get(feature));
        let found = of_feature.or_else(|| self.agents.get(agent));
        found.is_some_and(|found| !found.rungs.is_empty())
    }

    /// The ladder of a call of this agent and feature.
    pub(crate) fn of(&self, agent: &Name, feature: Option<&str>) -> CallLadder {
        let own = self.agents.get(agent);
        let of_feature = feature.and_then(|feature| self.features.get(feature));
        let Some(first) = of_feature.or(own) else { return CallLadder::default() };
        let lighter = own.map_or_else(Vec::new, |own| own.lighter.clone());
        let default = first.default.clone().or_else(|| own.and_then(|own| own.default.clone()));
        let notice = first.notice.clone().or_else(|| own.and_then(|own| own.notice.clone()));
        CallLadder { ladder: Ladder { rungs: first.rungs.clone(), lighter }, default, notice }
    }

    /// The same call where only this rung is tried, whatever the ladder's own rungs are.
    pub(crate) fn only(&self, agent: &Name, feature: Option<&str>, rung: Rung) -> CallLadder {
        let mut found = self.of(agent, feature);
        found.ladder.rungs = vec![RungRule::of(rung)];
        found.ladder.lighter = self.agents.get(agent).map_or_else(Vec::new, |own| own.lighter.clone());
        found
    }

    /// Whether something stands in for this agent where it is refused for `cause`, whatever the feature.
    pub(crate) fn answers(&self, agent: &Name, cause: Cause) -> bool {
        let failure = Failure { cause, fault: Fault::Place };
        let rungs = self.agents.get(agent).into_iter().flat_map(|own| &own.rungs);
        rungs.into_iter().any(|rule| rule.rung != Rung::Notice && rule.answers(failure))
    }

    /// Whether any ladder puts calls off.
    pub(crate) fn any_defers(&self) -> bool {
        let all = self.agents.values().chain(self.features.values());
        all.flat_map(|ladder| &ladder.rungs).any(|rule| rule.rung == Rung::Deferred)
    }

    /// The same without rungs that put calls off: where there is no journal to keep them in.
    #[must_use]
    pub fn without_deferred(mut self) -> Self {
        for ladder in self.agents.values_mut().chain(self.features.values_mut()) {
            ladder.rungs.retain(|rule| rule.rung != Rung::Deferred);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::policy::ladder::Effect;

    fn name(text: &str) -> Name {
        Name::try_new(text).unwrap()
    }

    #[test]
    fn a_features_rungs_stand_instead_of_the_agents() {
        let rungs = |rungs: &[Rung]| rungs.iter().copied().map(RungRule::of).collect::<Vec<_>>();
        let small = LighterTarget { agent: name("small"), context_tokens: None, effect: Effect::None };
        let own = LadderSettings {
            rungs: rungs(&[Rung::Lighter, Rung::Default]),
            lighter: vec![small.clone()],
            default: Some(Arc::new(json!("own"))),
            notice: None,
        };
        let batch = LadderSettings { rungs: rungs(&[Rung::Deferred]), ..LadderSettings::default() };
        let quiet = LadderSettings::default();
        let ladders = Ladders {
            agents: [(name("draft"), own)].into(),
            features: [(name("batch"), batch), (name("quiet"), quiet)].into(),
        };
        let words = |found: &CallLadder| found.ladder.rungs.iter().map(|rule| rule.rung).collect::<Vec<_>>();
        let draft = name("draft");
        assert_eq!(words(&ladders.of(&draft, None)), [Rung::Lighter, Rung::Default]);
        assert_eq!(words(&ladders.of(&draft, Some("chat"))), [Rung::Lighter, Rung::Default], "a feature without one");
        let batch = ladders.of(&draft, Some("batch"));
        assert_eq!((words(&batch), &batch.ladder.lighter), (vec![Rung::Deferred], &vec![small]));
        assert_eq!(batch.default, Some(Arc::new(json!("own"))));
        assert_eq!(words(&ladders.of(&name("meta"), Some("batch"))), [Rung::Deferred]);
        assert!(!ladders.has(&draft, Some("quiet")) && !ladders.has(&name("meta"), None));
        assert!(ladders.has(&draft, None) && ladders.has(&name("meta"), Some("batch")) && ladders.any_defers());
        assert!(!ladders.clone().without_deferred().any_defers());
        let only = ladders.only(&draft, Some("batch"), Rung::Lighter);
        assert_eq!((words(&only), only.ladder.lighter.len()), (vec![Rung::Lighter], 1));
    }
}
