//! Several deployments of one model name as the targets of one agent: which are asked first, and how equals share. What belongs to a
//! single deployment and has no counterpart for a single target is taken back here, never dropped in silence.

use std::collections::BTreeMap;

use super::{
    account::Account,
    deployment::{Deployment, Place},
};
use crate::{cli::import::toml_text::quoted, settings::targets::TARGETS_MAX};

/// The largest weight of a target.
const WEIGHT_MAX: f64 = 1_000.0;
/// What of a further deployment holds for it alone.
const OF_ITS_OWN: [&str; 8] =
    [".model_name", ".model", ".api_base", ".base_url", ".api_version", ".api_key", ".weight", ".order"];

/// The deployments of agent `name` that become its targets, in the order in which they are asked.
pub(super) fn targets_of<'a>(name: &str, group: &[&'a Deployment], account: &mut Account) -> Vec<&'a Deployment> {
    let mut kept: Vec<&Deployment> = Vec::new();
    for deployment in group {
        let same = |known: &&&Deployment| known.place == deployment.place && known.model == deployment.model;
        match kept.iter().find(same) {
            None => kept.push(deployment),
            Some(known) => {
                let said = format!("agents.{name}: the same provider and model as the entry of line {}", known.line);
                account.take_back(deployment.findings.clone(), &[], &said);
            }
        }
    }
    let weighted = is_weighted(&kept);
    // Stable: the file's order decides where nothing else does.
    kept.sort_by_key(|deployment| turn(deployment, weighted));
    for deployment in kept.split_off(kept.len().min(TARGETS_MAX)) {
        let said = format!("agents.{name}: an agent has at most {TARGETS_MAX} targets");
        account.take_back(deployment.findings.clone(), &[], &said);
    }
    if let Some((first, others)) = kept.split_first() {
        let said =
            format!("agents.{name}: targets share their agent's settings, which are those of line {}", first.line);
        let mut stays = OF_ITS_OWN.to_vec();
        if slots_of(&kept).is_some() {
            stays.push(".max_parallel_requests");
        }
        for other in others {
            account.take_back(other.findings.clone(), &stays, &said);
        }
    }
    kept
}

/// The slots of all targets together, where each has a number of its own.
pub(super) fn slots_of(targets: &[&Deployment]) -> Option<u64> {
    targets.iter().try_fold(0_u64, |sum, deployment| Some(sum.saturating_add(deployment.slots?)))
}

/// The list as TOML. A plain list is an order; equals have a weight each.
pub(super) fn target_list(
    name: &str,
    targets: &[&Deployment],
    providers: &[(String, Place)],
    account: &mut Account,
) -> String {
    let weighted = is_weighted(targets);
    let mut orders: BTreeMap<(u64, Share), usize> = BTreeMap::new();
    for deployment in targets {
        *orders.entry(turn(deployment, weighted)).or_default() += 1;
    }
    let has_equals = orders.values().any(|count| *count > 1);
    let weights = weights_of(targets);
    if has_equals && weights.is_scaled {
        account.silent(&format!("agents.{name}.targets"), "weights are whole numbers from 1 to 1000 here: scaled");
    }
    let mut list = String::from("[\n");
    for (deployment, weight) in targets.iter().zip(weights.whole) {
        let provider = provider_of(providers, deployment);
        list.push_str(&format!("  {{ provider = {}, model = {}", quoted(provider), quoted(&deployment.model)));
        if has_equals {
            if orders.len() > 1 {
                let place = orders.keys().position(|order| *order == turn(deployment, weighted)).unwrap_or_default();
                list.push_str(&format!(", order = {}", place + 1));
            }
            list.push_str(&format!(", weight = {weight}"));
        }
        list.push_str(" },\n");
    }
    list.push(']');
    list
}

/// The provider of a deployment's place.
pub(super) fn provider_of<'a>(providers: &'a [(String, Place)], deployment: &Deployment) -> &'a str {
    providers.iter().find(|(_, place)| *place == deployment.place).map_or("", |(name, _)| name.as_str())
}

/// Whether a deployment has a share of its equals' calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Share {
    Some,
    /// Its weight is 0 or missing beside others: it is asked where those cannot answer.
    None,
}

/// When a deployment is asked: the lowest first. Without an `order` it comes after those that have one.
fn turn(deployment: &Deployment, weighted: bool) -> (u64, Share) {
    let share = if weighted && weight_of(deployment).is_none() { Share::None } else { Share::Some };
    (deployment.order.unwrap_or(u64::MAX), share)
}

fn is_weighted(targets: &[&Deployment]) -> bool {
    targets.iter().any(|deployment| weight_of(deployment).is_some())
}

fn weight_of(deployment: &Deployment) -> Option<f64> {
    deployment.weight.filter(|weight| weight.is_finite() && *weight > 0.0)
}

struct Weights {
    whole: Vec<u32>,
    is_scaled: bool,
}

/// Their weights as whole numbers: as they are where that is possible, else the largest as 1000.
fn weights_of(targets: &[&Deployment]) -> Weights {
    let given: Vec<Option<f64>> = targets.iter().map(|deployment| weight_of(deployment)).collect();
    let fits = |weight: &f64| weight.fract() == 0.0 && (1.0..=WEIGHT_MAX).contains(weight);
    let is_scaled = !given.iter().flatten().all(fits);
    let largest = given.iter().flatten().copied().fold(1e-300, f64::max);
    let whole = |weight: f64| {
        let weight = if is_scaled { (weight / largest * WEIGHT_MAX).round() } else { weight };
        // proof: between 1 and 1000, so nothing is cut.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to 1 to 1000")]
        let whole = weight.clamp(1.0, WEIGHT_MAX) as u32;
        whole
    };
    Weights { whole: given.into_iter().map(|weight| weight.map_or(1, whole)).collect(), is_scaled }
}
