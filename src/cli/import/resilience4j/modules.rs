//! Resilience4j's modules with their shared configurations and instances, and how one inherits from the other.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    ledger::{Given, Ledger},
    properties::{Property, relaxed},
};
use crate::cli::import::{
    finding::{Finding, Outcome, shown},
    scalar::text,
};

/// The modules that have instances, by their relaxed names.
pub(super) const MODULES: [&str; 6] =
    ["circuitbreaker", "bulkhead", "threadpoolbulkhead", "retry", "timelimiter", "ratelimiter"];
/// The shared configuration that holds where none is named.
const DEFAULT: &str = "default";
/// A chain of shared configurations is followed no further.
const CHAIN_MAX: usize = 16;

/// One module of the file.
#[derive(Debug, Default)]
pub(super) struct Module {
    configs: BTreeMap<String, Section>,
    instances: BTreeMap<String, Section>,
}

/// The properties of one instance or shared configuration, by relaxed name, as places among all.
type Section = BTreeMap<String, usize>;

/// The whole file.
#[derive(Debug, Default)]
pub(super) struct Modules {
    modules: BTreeMap<&'static str, Module>,
    pub(super) givens: Vec<Given>,
}

impl Modules {
    /// Sorts properties into modules; what belongs to none is noted.
    pub(super) fn sort(properties: Vec<Property>, ledger: &mut Ledger) -> Self {
        let mut all = Self::default();
        for property in properties {
            all.place(property, ledger);
        }
        all
    }

    fn place(&mut self, property: Property, ledger: &mut Ledger) {
        let part = |index: usize| property.path.get(index).map(|part| relaxed(part)).unwrap_or_default();
        let module = MODULES.iter().find(|module| **module == part(1)).copied();
        let kind = part(2);
        let (Some(module), "configs" | "instances" | "backends") = (module, kind.as_str()) else {
            let said = match part(1).as_str() {
                "micrometer" | "metrics" => "every agent has metrics here, see docs/metrics.md",
                "scheduledexecutor" => "there is no pool of threads here that could be configured",
                _ if kind.ends_with("aspectorder") => {
                    "the order of guards is fixed: gate, slots, then attempts with their retries"
                }
                _ if kind == "metrics" || kind == "tags" => "every agent has metrics here, see docs/metrics.md",
                _ => "nothing here is known by this name",
            };
            ledger.add(Finding {
                line: Some(property.line),
                key: property.key(),
                value: shown(property.path.last().map_or("", String::as_str), &property.node),
                outcome: Outcome::NotSupported,
                said: said.to_owned(),
            });
            return;
        };
        let Some(name) = property.path.get(3).cloned() else { return self.empty(module, &property, ledger) };
        let own = self.modules.entry(module).or_default();
        let sections = if kind == "configs" { &mut own.configs } else { &mut own.instances };
        let section = sections.entry(name).or_default();
        if property.path.len() > 4 {
            let own_name = relaxed(&property.path[4]);
            let id = self.givens.len();
            // An item of a list that is written key by key: the list's name stands for it.
            section.insert(own_name.clone(), id);
            self.givens.push(Given { id, module, name: own_name, property });
        } else {
            self.empty(module, &property, ledger);
        }
    }

    /// A table without anything in it.
    fn empty(&mut self, module: &'static str, property: &Property, ledger: &mut Ledger) {
        let is_instance = property.path.len() == 4 && relaxed(&property.path[2]) != "configs";
        if is_instance && let Some(own) = self.modules.get_mut(module) {
            own.instances.entry(property.path[3].clone()).or_default();
        }
        let (outcome, said) = if is_instance {
            (Outcome::Taken, "an agent of its own")
        } else {
            (Outcome::NotTaken, "has nothing in it")
        };
        ledger.add(Finding {
            line: Some(property.line),
            key: property.key(),
            value: None,
            outcome,
            said: said.to_owned(),
        });
    }

    /// The names of all instances, of any module.
    pub(super) fn names(&self) -> BTreeSet<String> {
        self.modules.values().flat_map(|module| module.instances.keys().cloned()).collect()
    }

    /// True if the instance has a section of its own in this module.
    pub(super) fn has(&self, module: &str, instance: &str) -> bool {
        self.modules.get(module).is_some_and(|module| module.instances.contains_key(instance))
    }

    /// The properties that hold for an instance, by relaxed name: its own over those it inherits. Notes where a property comes too
    /// late and where an inheritance leads nowhere.
    pub(super) fn effective(&self, module: &str, instance: &str, ledger: &mut Ledger) -> BTreeMap<&str, &Given> {
        let mut effective: BTreeMap<&str, &Given> = BTreeMap::new();
        let Some((own, section)) =
            self.modules.get(module).and_then(|own| own.instances.get(instance).map(|section| (own, section)))
        else {
            return effective;
        };
        for (depth, section) in self.chain(own, module, instance, section, ledger).into_iter().enumerate() {
            for (name, id) in section.iter().filter(|(name, _)| *name != "baseconfig") {
                let given = &self.givens[*id];
                match effective.get(name.as_str()) {
                    None => _ = effective.insert(name, given),
                    Some(nearer) if depth > 0 => {
                        let said = format!("line {} says otherwise", nearer.property.line);
                        ledger.note(given, instance, Outcome::NotTaken, said);
                    }
                    Some(_) => {}
                }
            }
        }
        effective
    }

    /// The instance's section and those it inherits from, the nearest first.
    fn chain<'a>(
        &'a self,
        own: &'a Module,
        module: &str,
        instance: &str,
        section: &'a Section,
        ledger: &mut Ledger,
    ) -> Vec<&'a Section> {
        let mut chain = vec![section];
        let mut seen: BTreeSet<String> = BTreeSet::new();
        let mut current = section;
        // A circuit breaker's shared configuration stands for itself; those of the other modules also lean on the default one.
        let mut may_default = true;
        while chain.len() < CHAIN_MAX {
            let next = match current.get("baseconfig").map(|id| &self.givens[*id]) {
                Some(given) => match text(&given.property.node) {
                    Ok(name) if own.configs.contains_key(&name) && seen.insert(name.clone()) => {
                        ledger.note(given, instance, Outcome::Taken, format!("inherits from configs.{name}"));
                        may_default = module != "circuitbreaker" && name != DEFAULT;
                        own.configs.get(&name)
                    }
                    Ok(name) => {
                        let said = format!("there is no configs.{name} to inherit from, or it leads back to itself");
                        ledger.note(given, instance, Outcome::NotTaken, said);
                        None
                    }
                    Err(rule) => {
                        ledger.note(given, instance, Outcome::NotTaken, format!("its value {rule}"));
                        None
                    }
                },
                None if may_default => {
                    may_default = false;
                    let of_its_name = (module == "circuitbreaker").then(|| own.configs.get(instance)).flatten();
                    of_its_name.or_else(|| own.configs.get(DEFAULT))
                }
                None => None,
            };
            let Some(next) = next else { break };
            chain.push(next);
            current = next;
        }
        chain
    }

    /// True if this module is given for instances.
    pub(super) fn has_instances(&self, module: &str) -> bool {
        self.modules.get(module).is_some_and(|module| !module.instances.is_empty())
    }
}
