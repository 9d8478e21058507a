//! The names that a caller is counted under. Names that the configuration knows are themselves; unknown ones are those of the compartment
//! that takes them in, or of nobody: a caller never makes a new one by being refused.

use super::{
    directory::Directory,
    known_tenants::{CountedAs, Standing},
};
use crate::model::{call_log::CountedName, name::Name};

impl Directory {
    /// The configured feature that calls of this one, or of none, are counted as.
    pub fn feature_of(&self, said: Option<&str>) -> Option<&Name> {
        let known = said.and_then(|name| self.feature_places.get(name)).or(self.usual_feature.as_ref())?;
        self.features.get(usize::from(*known)).map(|feature| &feature.settings.name)
    }

    /// What calls of this feature are counted as.
    pub fn counted_feature(&self, said: Option<&str>) -> Option<CountedName> {
        if self.feature_places.is_empty() {
            return said.map(CountedName::said);
        }
        match self.feature_of(said) {
            Some(feature) => Some(CountedName::Known(feature.to_string())),
            None => said.map(|_| CountedName::other()),
        }
    }

    /// What calls of this tenant are counted as.
    pub fn counted_tenant(&self, said: Option<&str>) -> Option<CountedName> {
        let said = said?;
        if self.tiers.is_empty() {
            return Some(CountedName::said(said));
        }
        Some(match self.known.find(Some(said)) {
            Ok(CountedAs { standing: Standing::Stranger, name, .. }) if name == said => CountedName::said(said),
            Ok(CountedAs { name, .. }) => CountedName::Known(name.to_owned()),
            Err(_) => CountedName::other(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::compartment::{
        pool::Pool,
        settings::{CompartmentSettings, FeatureSettings, TenantSettings, TierSettings, UnknownFeature, UnknownTenant},
    };

    #[test]
    fn strangers_never_have_a_name_of_their_own() {
        let name = |text: &str| Name::try_new(text).unwrap();
        let known = |text: &str| Some(CountedName::Known(text.to_owned()));
        let with = |unknown_feature: UnknownFeature, unknown_tenant: UnknownTenant| CompartmentSettings {
            features: ["chat", "batch"].map(|of| FeatureSettings::new(name(of))).into(),
            tiers: vec![TierSettings::new(name("pro"))],
            tenants: vec![TenantSettings { name: name("acme"), tier: name("pro") }],
            unknown_feature,
            unknown_tenant,
            ..CompartmentSettings::default()
        };
        let refused = with(UnknownFeature::Refused, UnknownTenant::Refused);
        let shared = with(UnknownFeature::Is(name("batch")), UnknownTenant::Shared(name("pro")));
        let own = with(UnknownFeature::Refused, UnknownTenant::Own(name("pro")));
        for (settings, feature, tenant, unnamed) in [
            (refused, known("other"), known("other"), None),
            (shared, known("batch"), known("other"), known("batch")),
            (own, known("other"), Some(CountedName::said("new")), None),
            (CompartmentSettings::default(), Some(CountedName::said("new")), Some(CountedName::said("new")), None),
        ] {
            let is_plain = settings.features.is_empty();
            let directory = Directory::new(&settings, &mut Pool::<u32>::default());
            assert_eq!(directory.counted_feature(Some("new")), feature);
            assert_eq!(directory.counted_tenant(Some("new")), tenant);
            assert_eq!((directory.counted_feature(None), directory.counted_tenant(None)), (unnamed, None));
            if !is_plain {
                assert_eq!(directory.counted_feature(Some("chat")), known("chat"));
                assert_eq!(directory.counted_tenant(Some("acme")), known("acme"));
            }
        }
    }
}
