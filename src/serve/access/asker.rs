//! Whose request it is, where a layer around its handler has to know: the handler learns it, the layer asks afterwards. Decides nothing.

use std::sync::{Arc, OnceLock};

/// Left open by the layer, filled in by whoever finds out.
#[derive(Debug, Clone, Default)]
pub struct Asker(Arc<OnceLock<String>>);

impl Asker {
    /// The request is this one's. The first word counts.
    pub fn is(&self, whose: Option<String>) {
        if let Some(whose) = whose {
            // Said twice by a handler that asks twice: it is the same.
            let _ = self.0.set(whose);
        }
    }

    /// Whose it is; `None` if nobody found out, or where there are no keys and so one caller only.
    pub fn name(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }
}

/// The name of a tenant among askers.
pub fn of_tenant(tenant: &str) -> String {
    format!("tenant:{tenant}")
}

/// The name of a key without a tenant among askers.
pub fn of_key(key: &str) -> String {
    format!("key:{key}")
}
