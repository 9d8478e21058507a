//! Whether rules between tables can be asked while some tables hold slips of their own: all that is wrong is told in one go, but nothing
//! that only follows from another slip.

use super::{
    problem::{Problem, SettingsError},
    report::Report,
};

/// Tables that every rule looks at: what is wrong with one agent may be all that is wrong with its provider's shares.
const EVERYWHERE: [&str; 3] = ["agents", "defaults", "providers"];

/// Whether tables can be compared although these problems were found in single keys.
pub(super) fn may_be_compared(told: &[Problem]) -> bool {
    told.iter().all(|problem| !EVERYWHERE.contains(&first_of(&problem.key)))
}

/// All that is wrong: the problems of single keys, and of those that comparing tables has found what does not concern their tables again.
pub(super) fn tell_all(told: Vec<Problem>, report: &mut Report) -> Result<(), SettingsError> {
    let mut problems = std::mem::take(&mut report.problems);
    problems.retain(|found| !is_touched(&found.key, &told));
    problems.extend(told);
    if problems.is_empty() { Ok(()) } else { Err(SettingsError::new(problems)) }
}

fn is_touched(key: &str, told: &[Problem]) -> bool {
    told.iter().any(|problem| table_of(&problem.key) == table_of(key))
}

fn first_of(key: &str) -> &str {
    key.split('.').next().unwrap_or_default()
}

/// The first two parts of a key: `features.chat` of `features.chat.slots`.
fn table_of(key: &str) -> &str {
    let second = key.find('.').and_then(|dot| key.get(dot + 1..)?.find('.').map(|next| dot + 1 + next));
    second.and_then(|end| key.get(..end)).unwrap_or(key)
}

#[cfg(test)]
mod tests {
    use super::table_of;
    use crate::settings::tests::Given;

    #[test]
    fn tables_of_keys() {
        for (key, want) in [
            ("features.chat.slots", "features.chat"),
            ("features.chat.guaranteed.draft", "features.chat"),
            ("features.chat", "features.chat"),
            ("prices", "prices"),
            ("", ""),
        ] {
            assert_eq!(table_of(key), want);
        }
    }

    #[test]
    fn all_that_is_wrong_is_told_in_one_go() {
        let text = "[providers.o]\nkind = 'openai'\nbase_url = 'http://127.0.0.1:1/v1'\nmodel = 'm'\ntokens_per_minute = 10\n\
                    [agents.draft]\nprovider = 'o'\nmax_output_tokens = 500\nbreaker = { probe = 'request' }\n[agents.review]\nmax_output_tokens = 600\n\
                    [prices.'o/m']\ninput = 1\noutput = -2\n\
                    [prices.'o/n']\ninptu = 1\n\
                    [features.chat]\ntokens_per_minute = 499\n\
                    [features.batch]\ntokens_per_minute = 100\nslot = 5\n\
                    [tiers.free]\ntokens_per_minute = 0\n";
        let error = Given::config(text).load().unwrap_err().to_string();
        let mut told: Vec<&str> = error.lines().map(|line| line.split(": ").next().unwrap()).collect();
        told.sort_unstable();
        let places: Vec<&str> = error.lines().filter_map(|line| line.split(": ").nth(1)).collect();
        for key in [
            "prices.\"o/m\".output = -2",
            "prices.\"o/n\".inptu",
            "features.batch.slot",
            "tiers.free.tokens_per_minute = 0",
            "providers.o.tokens_per_minute = 10",
            "features.chat.tokens_per_minute = 499",
            "agents.draft.breaker.probe = \"request\"",
        ] {
            assert!(places.iter().any(|place| place.starts_with(key)), "{key} is not told:\n{error}");
        }
        assert!(!error.contains("features.batch.tokens_per_minute"), "its table has a slip already:\n{error}");
        assert!(told.iter().all(|line| line.starts_with("w.toml:")), "{told:?}");
        // What is wrong with an agent may be what is wrong with everything else.
        let error = Given::config(&text.replace("max_output_tokens = 500", "max_output_tokens = 'x'")).load();
        assert!(!error.unwrap_err().to_string().contains("features.chat.tokens_per_minute"));
    }
}
