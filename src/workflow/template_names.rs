//! The names that a template uses, looked at before it is filled: what it takes from outside, its filters and its tests. The engine would
//! say of each only when it gets there, in the middle of a run. Never fills anything.

use std::collections::HashSet;

use minijinja::{Environment, machinery::Token};

use super::{
    expression::is_known,
    template_rules::{BrokenRule, FILTERS, each_tag},
};
use crate::model::nearest::hint;

/// Names that the engine itself brings in some places.
const BROUGHT: [&str; 5] = ["caller", "loop", "self", "super", "varargs"];

/// Refuses a name, filter or test that there is not: `known` is all that a template is given. What is no template is the compiler's to say.
pub fn check_names(template: &str, known: &[&str]) -> Result<(), BrokenRule> {
    let environment = Environment::new();
    let Ok(compiled) = environment.template_from_str(template) else { return Ok(()) };
    let globals: HashSet<&str> = environment.globals().map(|(name, _)| name).collect();
    let is_there = |name: &str| known.contains(&name) || BROUGHT.contains(&name) || globals.contains(name);
    let strange: HashSet<String> =
        compiled.undeclared_variables(false).into_iter().filter(|name| !is_there(name)).collect();
    each_tag(template, |_, tokens| {
        for (place, token) in tokens.iter().enumerate() {
            let Token::Ident(word) = token else { continue };
            match place.checked_sub(1).and_then(|before| tokens.get(before)) {
                Some(Token::Dot) => {}
                Some(Token::Pipe) if !is_known(word, "filter") => {
                    return Err(format!("there is no filter {word:?}{}", hint(word, FILTERS.iter().copied())));
                }
                _ if *word == "is" && place > 0 => unknown_test(tokens.get(place + 1..).unwrap_or_default())?,
                _ if strange.contains(*word) && !matches!(tokens.get(place + 1), Some(Token::Assign)) => {
                    let near = hint(word, known.iter().copied());
                    return Err(format!("names the unknown {word:?}{near}; it is given {}", known.join(", ")));
                }
                _ => {}
            }
        }
        Ok(())
    })
}

/// What stands behind `is`, if it is the name of a test that there is not.
fn unknown_test(after: &[Token<'_>]) -> Result<(), String> {
    let ([Token::Ident("not"), Token::Ident(name), ..] | [Token::Ident(name), ..]) = after else { return Ok(()) };
    if is_known(name, "test") { Ok(()) } else { Err(format!("there is no test {name:?}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_told_with_its_line() {
        for (template, said) in [
            ("{{ input.notes | upper }} {% for a in input.list %}{{ a.b }}{{ loop.index }}{% endfor %}", None),
            (
                "{% set x = input.a %}{{ x }}{% if x is defined and x is not none %}{{ range(3) | list }}{% endif %}",
                None,
            ),
            ("{{ input.inptu.foo }} {{ dict(foo=input.a) }} {{ {'foo': 1}.foo }}", None),
            (
                "One\n\n{{ inptu.notes }}",
                Some("line 3: names the unknown \"inptu\"; did you mean \"input\"?; it is given input"),
            ),
            (
                "{{ input.a }}\n{% if\n notes %}x{% endif %}",
                Some("line 2: names the unknown \"notes\"; it is given input"),
            ),
            ("{{ notes | default('') }}", Some("line 1: names the unknown \"notes\"; it is given input")),
            ("\n{{ input.a | uppper }}", Some("line 2: there is no filter \"uppper\"; did you mean \"upper\"?")),
            ("{% if input.a is not difined %}{% endif %}", Some("line 1: there is no test \"difined\"")),
            // No template: the compiler's.
            ("{{ inptu.", None),
        ] {
            let found = check_names(template, &["input"]).map_err(|broken| broken.to_string());
            assert_eq!(found.err().as_deref(), said, "{template}");
        }
    }

    #[test]
    fn the_bundled_prompts_name_what_there_is() {
        for prompt in [
            include_str!("../../agents/draft/prompt.md"),
            include_str!("../../agents/meta/prompt.md"),
            include_str!("../../agents/review/prompt.md"),
            include_str!("../../agents/style/prompt.md"),
        ] {
            assert_eq!(check_names(prompt, &["input"]), Ok(()));
        }
    }
}
