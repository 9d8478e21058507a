//! What a template may be made of, before it is compiled. For every one: bounds within which its compiler needs no deep stack. For one that
//! a caller gives (a prompt of a rerun): a small language in which no value grows beyond what its input holds. Never compiles or fills.
//!
//! Lists inside lists, sums of lists and texts that are repeated make values whose parts are shared: little to hold, and more than any
//! memory once they are written out. The engine's fuel is charged for such a text when it is there. So a caller's prompt cannot make them:
//! it picks, compares, loops over and writes what its input holds, and joins texts, which are paid for byte by byte.

use minijinja::{
    machinery::{Token, tokenize},
    syntax::SyntaxConfig,
};

/// The most words and signs of one `{{ }}` or `{% %}`, and of an expression.
pub const TAG_TOKENS_MAX: usize = 1_000;
/// The most `elif` of one template: each is as deep as a tag within the one before.
pub const BRANCHES_MAX: usize = 200;
/// The most tags of a caller's template.
pub const TAGS_MAX: usize = 2_000;

/// Blocks that a caller's template may have.
const BLOCKS: [&str; 8] = ["if", "elif", "else", "endif", "for", "endfor", "set", "endset"];
/// Filters that make nothing large of something small.
pub(super) const FILTERS: &[&str] = &[
    "abs",
    "bool",
    "capitalize",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "first",
    "float",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "select",
    "selectattr",
    "sort",
    "string",
    "title",
    "tojson",
    "trim",
    "unique",
    "upper",
];
/// Filters that are given nothing: their arguments say how wide they write.
const BARE_FILTERS: [&str; 1] = ["tojson"];
/// Words that are no values.
const KEYWORDS: [&str; 7] = ["if", "else", "and", "or", "not", "in", "is"];
const LITERALS: [&str; 6] = ["true", "false", "none", "True", "False", "None"];

/// A rule that a template breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {rule}")]
pub struct BrokenRule {
    /// The line of the tag, counted from 1.
    pub line: u32,
    /// The rule, as a sentence's end: `must have ...`.
    pub rule: String,
}

/// Refuses what would take the compiler too deep.
pub fn check_bounds(template: &str) -> Result<(), BrokenRule> {
    each_tag(template, |_, _| Ok(()))
}

/// The same for an expression without braces around it. The error is a rule, as a sentence's end.
pub(super) fn check_expression_bounds(expression: &str) -> Result<(), String> {
    let tokens = tokenize(expression, true, SyntaxConfig::default()).take_while(Result::is_ok);
    if tokens.take(TAG_TOKENS_MAX + 1).count() > TAG_TOKENS_MAX {
        return Err(format!("must have at most {TAG_TOKENS_MAX} words and signs"));
    }
    Ok(())
}

/// Refuses what a caller's template must not have.
pub fn check_strange(template: &str) -> Result<(), BrokenRule> {
    let mut tags = 0;
    each_tag(template, |kind, tokens| {
        tags += 1;
        if tags > TAGS_MAX {
            return Err(format!("must have at most {TAGS_MAX} tags"));
        }
        match kind {
            Tag::Value => Reading::of(tokens).expression(),
            Tag::Block => block(tokens),
        }
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tag {
    Value,
    Block,
}

/// Gives each tag's tokens to `see`, within the bounds that hold for all. What is no template is the compiler's to say.
pub(super) fn each_tag(
    template: &str,
    mut see: impl FnMut(Tag, &[Token<'_>]) -> Result<(), String>,
) -> Result<(), BrokenRule> {
    let (mut tag, mut tokens, mut line, mut branches) = (None, Vec::new(), 1, 0);
    for token in tokenize(template, false, SyntaxConfig::default()) {
        let Ok((token, span)) = token else { break };
        let at = |rule: String| BrokenRule { line, rule };
        match token {
            Token::VariableStart => (tag, line) = (Some(Tag::Value), u32::from(span.start_line)),
            Token::BlockStart => (tag, line) = (Some(Tag::Block), u32::from(span.start_line)),
            Token::VariableEnd | Token::BlockEnd => {
                if let Some(kind) = tag.take() {
                    branches += usize::from(matches!(tokens.first(), Some(Token::Ident("elif"))));
                    if branches > BRANCHES_MAX {
                        return Err(at(format!("must have at most {BRANCHES_MAX} elif")));
                    }
                    see(kind, &tokens).map_err(at)?;
                }
                tokens.clear();
            }
            Token::TemplateData(_) => {}
            other => {
                if tokens.len() >= TAG_TOKENS_MAX {
                    return Err(at(format!("must have at most {TAG_TOKENS_MAX} words and signs between its braces")));
                }
                tokens.push(other);
            }
        }
    }
    // One that does not end, too: it is compiled up to its end.
    Ok(())
}

fn block(tokens: &[Token<'_>]) -> Result<(), String> {
    let Some(Token::Ident(name)) = tokens.first() else { return Ok(()) };
    if !BLOCKS.contains(name) {
        return Err(format!("must not have the block {name:?} (blocks: {})", BLOCKS.join(", ")));
    }
    let rest = &tokens[1..];
    let rest = match (*name, rest) {
        ("set", [Token::Ident(_)]) => &[],
        ("set", [Token::Ident(_), Token::Assign, value @ ..]) => value,
        ("set", _) => return Err("must set one name to one value".to_owned()),
        ("for", _) => looped(rest)?,
        _ => rest,
    };
    Reading::of(rest).expression()
}

/// What a loop goes over, behind its names.
fn looped<'t, 's>(tokens: &'t [Token<'s>]) -> Result<&'t [Token<'s>], String> {
    let names = tokens.iter().take_while(|token| !matches!(token, Token::Ident("in"))).count();
    let is_name = |(place, token): (usize, &Token<'_>)| {
        if place % 2 == 0 { matches!(token, Token::Ident(_)) } else { matches!(token, Token::Comma) }
    };
    if names % 2 == 0 || !tokens[..names].iter().enumerate().all(is_name) {
        return Err("must name what its loop goes over, as in `for photo in input.photos`".to_owned());
    }
    Ok(tokens.get(names + 1..).unwrap_or_default())
}

/// What a bracket was opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    /// Arguments of a filter, a test or one of the few functions.
    Call,
    /// `( )` around a part of an expression.
    Group,
    /// `[ ]` behind a value.
    Index,
    /// `[ ]` of a list that is written out.
    List,
}

/// An expression that is looked through from its beginning.
struct Reading<'t, 's> {
    tokens: &'t [Token<'s>],
    open: Vec<Open>,
}

impl<'t, 's> Reading<'t, 's> {
    fn of(tokens: &'t [Token<'s>]) -> Self {
        Self { tokens, open: Vec::new() }
    }

    fn expression(mut self) -> Result<(), String> {
        for place in 0..self.tokens.len() {
            self.token(place)?;
        }
        Ok(())
    }

    fn at(&self, place: usize, offset: isize) -> Option<&'t Token<'s>> {
        place.checked_add_signed(offset).and_then(|place| self.tokens.get(place))
    }

    fn token(&mut self, place: usize) -> Result<(), String> {
        let inner = self.open.last().copied();
        match &self.tokens[place] {
            Token::Ident(word) => self.word(place, word)?,
            Token::BracketOpen => {
                let is_index = self.ends_value(place) && inner != Some(Open::List);
                self.open.push(if is_index { Open::Index } else { Open::List });
            }
            Token::ParenOpen => {
                let opened = self.parenthesis(place)?;
                self.open.push(opened);
            }
            Token::BracketClose | Token::ParenClose => {
                self.open.pop();
            }
            Token::Comma if matches!(inner, Some(Open::Call | Open::List)) => {}
            Token::Comma => return Err("must not make lists of values".to_owned()),
            Token::Assign if inner == Some(Open::Call) => {}
            Token::Colon if inner == Some(Open::Index) => {}
            Token::Plus if self.adds_number(place) => {}
            Token::Plus => return Err("must add a number that is written out; texts are joined with `~`".to_owned()),
            Token::Dot if matches!(self.at(place, 1), Some(Token::Ident(_))) => {}
            sign @ (Token::Assign
            | Token::Colon
            | Token::Dot
            | Token::Mul
            | Token::Pow
            | Token::BraceOpen
            | Token::BraceClose) => return Err(format!("must not have {sign} there")),
            _ => {}
        }
        let is_literal = match &self.tokens[place] {
            Token::Ident(word) => LITERALS.contains(word),
            Token::Str(_) | Token::String(_) | Token::Int(_) | Token::Float(_) | Token::Comma | Token::Minus => true,
            token => matches!(token, Token::BracketOpen | Token::BracketClose),
        };
        if inner == Some(Open::List) && !is_literal {
            return Err("must have only texts and numbers in a list that is written out".to_owned());
        }
        Ok(())
    }

    fn word(&self, place: usize, word: &str) -> Result<(), String> {
        if matches!(self.at(place, -1), Some(Token::Pipe)) {
            if !FILTERS.contains(&word) {
                return Err(format!("must not have the filter {word:?} (filters: {})", FILTERS.join(", ")));
            }
            let is_called = matches!(self.at(place, 1), Some(Token::ParenOpen));
            if BARE_FILTERS.contains(&word) && is_called {
                return Err(format!("must have the filter {word} without arguments"));
            }
            if word == "map" && !self.maps_attribute(place) {
                return Err("must have the filter map as in `map(attribute=\"name\")`".to_owned());
            }
        } else if word == "recursive" {
            return Err("must not have a recursive loop".to_owned());
        }
        Ok(())
    }

    fn maps_attribute(&self, place: usize) -> bool {
        matches!(
            self.tokens.get(place + 1..place + 6),
            Some([
                Token::ParenOpen,
                Token::Ident("attribute"),
                Token::Assign,
                Token::Str(_) | Token::String(_),
                Token::ParenClose
            ])
        )
    }

    /// Whether a value ends before this place.
    fn ends_value(&self, place: usize) -> bool {
        match self.at(place, -1) {
            Some(Token::Ident(word)) => !KEYWORDS.contains(word) || matches!(self.at(place, -2), Some(Token::Dot)),
            Some(Token::Str(_) | Token::String(_) | Token::Int(_) | Token::Float(_)) => true,
            Some(token) => matches!(token, Token::BracketClose | Token::ParenClose),
            None => false,
        }
    }

    fn parenthesis(&self, place: usize) -> Result<Open, String> {
        if !self.ends_value(place) {
            return Ok(Open::Group);
        }
        let Some(Token::Ident(name)) = self.at(place, -1) else { return Err("must not call a value".to_owned()) };
        let is_called = match self.at(place, -2) {
            Some(Token::Pipe | Token::Ident("is")) => true,
            Some(Token::Ident("not")) => matches!(self.at(place, -3), Some(Token::Ident("is"))),
            Some(Token::Dot) => {
                *name == "cycle"
                    && matches!(self.at(place, -3), Some(Token::Ident("loop")))
                    && !matches!(self.at(place, -4), Some(Token::Dot))
            }
            _ => *name == "range",
        };
        if is_called { Ok(Open::Call) } else { Err(format!("must not call {name}")) }
    }

    /// Lists would be put together by it; a list and a number cannot be.
    fn adds_number(&self, place: usize) -> bool {
        let is_number = |token: Option<&Token<'_>>| matches!(token, Some(Token::Int(_) | Token::Float(_)));
        let goes_on = matches!(
            self.at(place, 2),
            Some(Token::Pipe | Token::Dot | Token::BracketOpen | Token::ParenOpen | Token::Pow | Token::Mul)
        );
        is_number(self.at(place, -1)) || (is_number(self.at(place, 1)) && !goes_on)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A template of about so many words and signs.
    type Make = fn(usize) -> String;

    #[test]
    fn what_a_caller_may_write() {
        for template in [
            "Notes: {{ input.notes }} and 2 * 3 + [x](y), a|b",
            "{% for photo in input.photos %}{{ loop.index + 1 }}. {{ photo.file }}{% if not loop.last %}, {% endif %}{% endfor %}",
            "{% for name, value in input.places|items if value %}{{ name }}{% else %}none{% endfor %}",
            "{{ input.photos | map(attribute=\"place\") | join(\", \") | default(\"nowhere\", true) }}",
            "{% if input.kind in [\"walk\", 'run', [1, -2.5, none]] and input.n is not none %}{% elif (input.n or 1) > 2 %}{% endif %}",
            "{% set title = input.title ~ \"!\" %}{% set rest %}{{ input }}{% endset %}{{ title|upper }}{{ rest }}",
            "{{ input.photos[0].place }}{{ input[\"a\"][1:3] }}",
            "{{ 1 + input.n }}{{ input.n + 1.5 }}{{ input.n - input.m }}{{ -input.n // 2 % 3 }}{{ range(3) }}{{ loop.cycle('a', 'b') }}",
            "{{ input | tojson }}{% raw %}{{ input * 5 }}{% endraw %}{# {{ [input] }} #}",
        ] {
            assert_eq!(check_strange(template), Ok(()), "{template}");
        }
    }

    #[test]
    fn what_a_caller_may_not_write() {
        for template in [
            // Values that share their parts.
            "{{ [input] }}",
            "{{ [\"a\", input.b] }}",
            "{{ [[input]] }}",
            "{{ [\"a\"[input]] }}",
            "{{ {\"a\": input} }}",
            "{% set a = input, input %}",
            "{{ (input, input) }}",
            "{{ input, 1 }}",
            "{% for a in input, input %}{% endfor %}",
            "{% for a in (input, input) %}{% endfor %}",
            "{% set a.b = 1 %}",
            "{% set a, b = input %}",
            // Values that are put together or repeated.
            "{{ \"x\" * 1000 }}",
            "{{ input.a + input.b }}",
            "{{ input.a + 0|default(input.a, true) }}",
            "{{ input.a + 0[input] }}",
            "{{ input.1 + input.1 }}",
            "{{ 2 ** 1000 }}",
            // Functions, blocks and filters that make much of little.
            "{% set ns = namespace() %}",
            "{{ dict(a=1) }}",
            "{{ input.range(3) }}",
            "{{ caller() }}",
            "{{ (input)(1) }}",
            "{{ input.cycle(1) }}",
            "{{ a.loop.cycle(1) }}",
            "{% macro a() %}{% endmacro %}",
            "{% include 'x' %}",
            "{% for a in input recursive %}{% endfor %}",
            "{% filter upper %}{% endfilter %}",
            "{{ input|chain(input) }}",
            "{{ input|batch(1000000, input) }}",
            "{{ input.l|map('default', input) }}",
            "{{ input.l|map(attribute='a', default=input) }}",
            "{{ input.l|map }}",
            "{{ input|tojson(indent=1000000) }}",
            "{{ '%1000000d'|format(1) }}",
        ] {
            assert!(check_strange(template).is_err(), "{template}");
        }
        let error = check_strange("fine\n\n{{ input|chain(input) }}").unwrap_err().to_string();
        assert!(error.starts_with("line 3: must not have the filter \"chain\" (filters: abs, "), "{error}");
    }

    /// As far as the bounds go the compiler gets on with the stack of any thread; beyond them nothing is compiled.
    #[test]
    fn what_goes_too_deep_is_refused() {
        let compiles = |source: &str| {
            check_bounds(source).map_err(|error| error.to_string())?;
            minijinja::Environment::new().template_from_str(source).map(drop).map_err(|error| error.to_string())
        };
        let long: [(&str, Make); 7] = [
            ("-", |count| format!("{{{{ {}1 }}}}", "-".repeat(count))),
            ("not", |count| format!("{{{{ {}1 }}}}", "not ".repeat(count))),
            (".a", |count| format!("{{{{ input{} }}}}", ".a".repeat(count / 2))),
            ("|abs", |count| format!("{{{{ 1{} }}}}", "|abs".repeat(count / 2))),
            ("+1", |count| format!("{{{{ 1{} }}}}", "+1".repeat(count / 2))),
            ("if else", |count| format!("{{{{ {}1 }}}}", "1 if 1 else ".repeat(count / 4))),
            ("[", |count| format!("{{{{ {} }}}}", "[0]".repeat(count / 3))),
        ];
        for (name, make) in long {
            // The compiler has bounds of its own for some; what counts is that it comes back.
            let _ = compiles(&make(TAG_TOKENS_MAX - 8));
            let error = compiles(&make(80_000)).unwrap_err();
            assert!(error.contains("words and signs"), "{name}: {error}");
            assert!(compiles(&make(30)).is_ok(), "{name}");
        }
        let branches = |count: usize| format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}x".repeat(count));
        assert_eq!(compiles(&branches(BRANCHES_MAX)), Ok(()));
        assert!(compiles(&branches(10_000)).unwrap_err().contains("elif"));
        let open = format!("{{{{ {}", "-".repeat(80_000));
        assert!(compiles(&open).unwrap_err().contains("words and signs"), "one that has no end");
        assert!(check_expression_bounds(&"-".repeat(TAG_TOKENS_MAX + 1)).is_err());
        assert_eq!(check_expression_bounds("a + 1"), Ok(()));
    }
}
