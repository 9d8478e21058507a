//! Texts made by chance: whatever is given, the answer is settings that explain themselves or a list of problems.

use proptest::prelude::*;

use super::{given::Given, rich::RICH, slips::PROVIDERS};
use crate::settings::load::explain;

/// Whatever is given, the answer is settings that explain themselves or problems that say something.
fn survives(given: &Given) {
    match given.load() {
        Ok(settings) => assert!(!explain(&settings).is_empty()),
        Err(error) => assert!(!error.to_string().is_empty() && !error.problems().is_empty()),
    }
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        survives(&Given::bytes(&bytes));
        survives(&Given::nothing().folder("draft", &[("agent.toml", &String::from_utf8_lossy(&bytes))]));
    }

    #[test]
    fn no_text_panics(text in "[\\[\\]{}=\"'.,#a-z0-9 \n-]{0,200}") {
        survives(&Given::config(&text));
    }

    #[test]
    fn no_value_panics(
        key in prop::sample::select(vec!["slots", "timeout", "retry", "breaker", "headers", "schema", "stage", "restart", "mapping"]),
        value in prop::sample::select(vec!["-1", "1e400", "nan", "''", "'\u{0}'", "[]", "{}", "{ a = {} }", "1979-05-27", "'99999999h'",
            "9223372036854775808", "0x7fffffffffffffff", "true", "[[[[[]]]]]", "'{{'", "'sk-abc'"]),
        kind in prop::sample::select(vec!["e", "h", "o"]),
    ) {
        survives(&Given::config(&format!("{PROVIDERS}[agents.x]\nprovider = '{kind}'\n{key} = {value}\n")));
        survives(&Given::config(PROVIDERS).flag(&format!("agents.x.{key}={value}")));
        survives(&Given::config(&format!("{PROVIDERS}[defaults]\n{key} = {value}\n[providers.x]\n{key} = {value}\n")));
    }

    #[test]
    fn no_mutation_of_a_good_file_panics(changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3_u8), 1..12)) {
        let mut bytes = RICH.as_bytes().to_vec();
        for (index, byte, kind) in changes {
            if bytes.is_empty() { break }
            let at = index.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => { bytes.remove(at); }
                _ => bytes.insert(at, byte),
            }
        }
        survives(&Given::bytes(&bytes));
    }

    #[test]
    fn no_line_lost_or_doubled_panics(lost in any::<prop::sample::Index>(), doubled in any::<prop::sample::Index>()) {
        let mut lines: Vec<&str> = RICH.lines().collect();
        lines.remove(lost.index(lines.len()));
        let at = doubled.index(lines.len());
        lines.insert(at, lines[at]);
        survives(&Given::config(&lines.join("\n")));
    }

    #[test]
    fn no_variable_or_flag_panics(name in "[A-Z_0-9.]{0,60}", text in ".{0,40}", flag in ".{0,60}") {
        survives(&Given::config(RICH).environment(&format!("WATERTIGHT_{name}"), &text));
        survives(&Given::config(RICH).environment("WATERTIGHT_AGENTS__DRAFT__MODEL", &text));
        survives(&Given::config(RICH).flag(&flag).flag(&format!("agents.draft={text}")));
    }
}

#[test]
fn deep_and_wide_inputs_are_bounded() {
    survives(&Given::config(&format!("a = {}{}", "[".repeat(50_000), "]".repeat(50_000))));
    survives(&Given::config(&format!("{} = 1", vec!["a"; 50_000].join("."))));
    survives(&Given::nothing().environment(&format!("WATERTIGHT_{}", vec!["A"; 50_000].join("__")), "1"));
    survives(&Given::nothing().flag(&format!("{}=1", vec!["a"; 50_000].join("."))));
    let wide = (0..20_000).map(|number| format!("[agents.a{number}]")).collect::<Vec<_>>().join("\n");
    survives(&Given::config(&wide));
}
