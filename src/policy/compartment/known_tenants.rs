//! Under which name a tenant is counted, and of which tier it is: one table for slots, requests and tokens, made whenever settings come.
//! It holds the names of the configuration and nothing that anybody else said; it counts nobody.

use std::sync::Arc;

use super::{
    directory::Stranger,
    settings::{CompartmentSettings, UnknownTenant},
};
use crate::model::name::{Name, NameMap};

/// The name under which tenants that are not known are counted together.
pub const SHARED_TENANT: &str = "other";

/// The tenants that a configuration knows, and what becomes of others.
#[derive(Debug, Default)]
pub struct KnownTenants {
    /// Their tiers' places.
    known: NameMap<usize>,
    strangers: Option<(Strangers, usize)>,
}

/// How tenants that are not known are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Strangers {
    /// All of them as one.
    Together,
    /// Each as itself, and calls that name none as one more.
    Each,
}

/// As whom a tenant is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CountedAs<'a> {
    /// The name.
    pub name: &'a str,
    /// The place of its tier.
    pub tier: usize,
    /// Whether the configuration names it.
    pub standing: Standing,
}

/// Who a tenant is to the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// One that it names.
    Known,
    /// One that it does not name.
    Stranger,
}

impl KnownTenants {
    /// Those of these settings. A tier that is not there was refused before.
    pub fn of(settings: &CompartmentSettings) -> Arc<Self> {
        let tier_of = |name: &Name| settings.tiers.iter().position(|tier| tier.name == *name);
        let known = settings.tenants.iter();
        let known = known.filter_map(|tenant| Some((tenant.name.clone(), tier_of(&tenant.tier)?))).collect();
        let strangers = match &settings.unknown_tenant {
            UnknownTenant::Refused => None,
            UnknownTenant::Shared(tier) => tier_of(tier).map(|tier| (Strangers::Together, tier)),
            UnknownTenant::Own(tier) => tier_of(tier).map(|tier| (Strangers::Each, tier)),
        };
        Arc::new(Self { known, strangers })
    }

    /// As whom one who says this name, or none, is counted; why it is not.
    pub fn find<'a>(&self, said: Option<&'a str>) -> Result<CountedAs<'a>, Stranger> {
        let known = said.and_then(|name| Some((name, *self.known.get(name)?)));
        if let Some((name, tier)) = known {
            return Ok(CountedAs { name, tier, standing: Standing::Known });
        }
        let standing = Standing::Stranger;
        match (said, self.strangers) {
            (Some(name), Some((Strangers::Each, tier))) => Ok(CountedAs { name, tier, standing }),
            (_, Some((_, tier))) => Ok(CountedAs { name: SHARED_TENANT, tier, standing }),
            (Some(_), None) => Err(Stranger::Tenant),
            (None, None) => Err(Stranger::NoTenant),
        }
    }

    /// The tier of those who are counted under this very name.
    pub fn tier_under(&self, name: &str) -> Option<usize> {
        self.find(Some(name)).ok().filter(|counted| counted.name == name).map(|counted| counted.tier)
    }

    /// Whether the configuration names it.
    pub fn names(&self, name: &str) -> bool {
        self.known.contains_key(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::compartment::settings::{TenantSettings, TierSettings};

    #[test]
    fn as_whom_a_tenant_is_counted() {
        let name = |text: &str| Name::try_new(text).unwrap();
        let with = |unknown_tenant| {
            KnownTenants::of(&CompartmentSettings {
                tiers: ["free", "pro"].map(|tier| TierSettings::new(name(tier))).into(),
                tenants: vec![TenantSettings { name: name("acme"), tier: name("pro") }],
                unknown_tenant,
                ..CompartmentSettings::default()
            })
        };
        let known = |name| Ok(CountedAs { name, tier: 1, standing: Standing::Known });
        let stranger = |name| Ok(CountedAs { name, tier: 0, standing: Standing::Stranger });
        for (unknown, new, none, under_new, under_other) in [
            (UnknownTenant::Refused, Err(Stranger::Tenant), Err(Stranger::NoTenant), None, None),
            (UnknownTenant::Shared(name("free")), stranger("other"), stranger("other"), None, Some(0)),
            (UnknownTenant::Own(name("free")), stranger("new"), stranger("other"), Some(0), Some(0)),
            (UnknownTenant::Own(name("gone")), Err(Stranger::Tenant), Err(Stranger::NoTenant), None, None),
        ] {
            let tenants = with(unknown.clone());
            assert_eq!(tenants.find(Some("acme")), known("acme"), "{unknown:?}");
            assert_eq!((tenants.find(Some("new")), tenants.find(None)), (new, none), "{unknown:?}");
            let under = (tenants.tier_under("acme"), tenants.tier_under("new"), tenants.tier_under("other"));
            assert_eq!(under, (Some(1), under_new, under_other), "{unknown:?}");
            assert!(tenants.names("acme") && !tenants.names("new") && !tenants.names("other"));
        }
    }
}
