//! `[priorities]`: the order of the classes, what is kept for each, and when the lowest are refused.

use super::{
    node::{Node, Value},
    reader::Reader,
};
use crate::policy::{
    bulkhead::KeptFrom,
    compartment::settings::{CLASSES, ClassSettings},
    shedding::SheddingSettings,
};

/// Reads `[priorities]`.
pub(super) fn read_priorities(root: &mut Reader<'_, '_>) -> (ClassSettings, SheddingSettings) {
    let mut reader = root.table("priorities");
    let mut classes = ClassSettings::default();
    if let Some(order) = read_order(&mut reader) {
        classes.order = order;
    }
    reader.explain("order", classes.order.join(", "));
    read_shares(&mut reader, "reserved", KeptFrom::Lower, &mut classes);
    read_shares(&mut reader, "minimum", KeptFrom::All, &mut classes);
    let mut shedding = SheddingSettings::for_classes(classes.order.len());
    shedding.wait_max = reader.duration("wait_max", shedding.wait_max);
    shedding.over = reader.duration("over", shedding.over);
    reader.refuse_broken(&classes.check());
    reader.refuse_broken(&shedding.check());
    reader.finish(&[]);
    (classes, shedding)
}

/// The order as it is given; what is no class at all is refused here, what is twice or missing where the order is checked.
fn read_order(reader: &mut Reader<'_, '_>) -> Option<Vec<&'static str>> {
    let node = reader.node("order")?;
    let class_of = |node: &Node| match &node.value {
        Value::Text(text) => CLASSES.iter().find(|class| *class == text).copied(),
        _ => None,
    };
    let order: Option<Vec<&'static str>> = match &node.value {
        Value::List(items) if items.len() <= CLASSES.len() => items.iter().map(class_of).collect(),
        _ => None,
    };
    if order.is_none() {
        reader.refuse("order", format!("must name each of {} once", CLASSES.join(", ")));
    }
    order
}

/// One table of shares, by class.
fn read_shares(reader: &mut Reader<'_, '_>, key: &'static str, kept_from: KeptFrom, classes: &mut ClassSettings) {
    let mut table = reader.table(key);
    for (place, class) in classes.order.iter().enumerate() {
        if !table.is_given(class) {
            continue;
        }
        let share = table.number(class, 0.0);
        let Some(kept) = classes.kept.get_mut(place) else { continue };
        if !(0.0..=1.0).contains(&share) {
            table.refuse(class, "must be a share from 0 to 1");
        } else if kept.share > 0.0 {
            table.refuse(class, "has a reserved share already; a class has that or a minimum");
        } else {
            (kept.share, kept.kept_from) = (share, kept_from);
        }
    }
    table.finish(&[]);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::settings::tests::Given;

    #[test]
    fn defaults_and_every_key() {
        let plain = Given::config("").load().unwrap().compartments;
        assert_eq!(plain.classes, ClassSettings::default());
        let text = "[priorities]\norder = ['interactive', 'critical', 'standard', 'batch', 'background']\nreserved = { interactive = 0.3 }\nminimum = { background = 0.05 }\nwait_max = '200ms'\nover = '2s'\n";
        let settings = Given::config(text).load().unwrap().compartments;
        assert_eq!(settings.classes.order[0], "interactive");
        assert_eq!((settings.classes.kept[0].share, settings.classes.kept[4].kept_from), (0.3, KeptFrom::All));
        assert_eq!(
            (settings.shedding.wait_max, settings.shedding.over),
            (Duration::from_millis(200), Duration::from_secs(2))
        );
    }

    #[test]
    fn mistakes_are_told_with_their_place() {
        let all = "critical, interactive, standard, batch, background";
        for (text, want) in [
            (
                "order = ['interactive']",
                format!("w.toml:2: priorities.order = [\"interactive\"]: must name each of {all} once"),
            ),
            ("order = ['urgent']", format!("w.toml:2: priorities.order = [\"urgent\"]: must name each of {all} once")),
            (
                "reserved = { batch = 1.5 }",
                "w.toml:2: priorities.reserved.batch = 1.5: must be a share from 0 to 1".to_owned(),
            ),
            ("reserved = { urgent = 0.5 }", "w.toml:2: priorities.reserved.urgent = 0.5: unknown key".to_owned()),
            ("wait_max = '0s'", "w.toml:2: priorities.wait_max".to_owned()),
            (
                "reserved = { critical = 0.6 }\nminimum = { background = 0.5 }",
                "w.toml:2: priorities.reserved".to_owned(),
            ),
            (
                "reserved = { batch = 0.1 }\nminimum = { batch = 0.1 }",
                "w.toml:3: priorities.minimum.batch = 0.1: has a reserved".to_owned(),
            ),
        ] {
            let error = Given::config(&format!("[priorities]\n{text}\n")).load().unwrap_err().to_string();
            assert!(error.starts_with(&want), "{text}: {error}");
        }
    }
}
