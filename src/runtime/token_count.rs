//! How many tokens a text has before a server tells: counted with a real vocabulary, or roughly by its letters. Decides nothing about
//! budgets, and knows no model's own vocabulary: what comes out is an estimate, however exactly it was counted.

use std::sync::LazyLock;

use serde_json::Value;
use tiktoken::{CoreBpe, encoding};

use crate::model::reply::CountedBy;

/// Text up to this size is counted whole; of a longer one so much, spread over it, and the rest is taken to be like that. It bounds the
/// time of a count (well under a millisecond for text, some milliseconds for the worst of noise), which is asked for where nothing may
/// wait.
pub const COUNTED_BYTES_MAX: usize = 16 * 1_024;
/// In so many pieces a longer text is looked at: a prompt's head, its examples and its question are seldom alike.
const SAMPLES: usize = 8;
/// Letters of plain English text to a token, and of everything else (Hangul, CJK, signs); from counts with common vocabularies.
const ASCII_CHARS_PER_TOKEN: u64 = 4;
const OTHER_CHARS_PER_TOKEN: u64 = 2;

/// A model family's own way to cut text into tokens. Each is loaded by its first count, which takes some hundred milliseconds and 25 MiB
/// that are then kept; nobody pays who never counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Vocabulary {
    /// OpenAI's since GPT-4o; for every model that is not known to have another one.
    #[default]
    O200k,
    /// OpenAI's before that, and of its embeddings.
    Cl100k,
    /// Llama 3.
    Llama,
    /// Qwen 2 and 3.
    Qwen,
    /// Mistral since Nemo.
    Mistral,
    /// `DeepSeek` V3.
    Deepseek,
}

/// What stands in a model's name, and whose vocabulary that is; the first that fits.
const FAMILIES: [(&str, Vocabulary); 8] = [
    // A distilled model keeps the vocabulary of the model it was made into.
    ("qwen", Vocabulary::Qwen),
    ("llama", Vocabulary::Llama),
    ("mistral", Vocabulary::Mistral),
    ("mixtral", Vocabulary::Mistral),
    ("deepseek", Vocabulary::Deepseek),
    ("gpt-3.5", Vocabulary::Cl100k),
    ("gpt-35", Vocabulary::Cl100k),
    ("text-embedding-", Vocabulary::Cl100k),
];

static O200K: LazyLock<CoreBpe> = LazyLock::new(encoding::o200k_base);
static CL100K: LazyLock<CoreBpe> = LazyLock::new(encoding::cl100k_base);
static LLAMA: LazyLock<CoreBpe> = LazyLock::new(encoding::llama3);
static QWEN: LazyLock<CoreBpe> = LazyLock::new(encoding::qwen2);
static MISTRAL: LazyLock<CoreBpe> = LazyLock::new(encoding::mistral_v3);
static DEEPSEEK: LazyLock<CoreBpe> = LazyLock::new(encoding::deepseek_v3);

impl Vocabulary {
    /// That of the family which a model's name tells, in whatever spelling; else the default.
    pub fn of_model(model: &str) -> Self {
        let model = model.to_lowercase();
        FAMILIES.iter().find(|(name, _)| model.contains(name)).map(|(_, family)| *family).unwrap_or_default()
    }

    /// Loads it if it is not loaded yet. That keeps a processor busy for a while: called where a service starts, so that no call waits
    /// for it.
    pub fn load(self) {
        LazyLock::force(self.vocabulary());
    }

    /// How many tokens `text` has; 0 for none. Beyond [`COUNTED_BYTES_MAX`] a part is counted and scaled up.
    pub fn count(self, text: &str) -> u64 {
        if text.len() <= COUNTED_BYTES_MAX {
            return self.count_exactly(text);
        }
        let (mut tokens, mut bytes) = (0_u64, 0_u64);
        for sample in samples(text) {
            tokens += self.count_exactly(sample);
            bytes += as_count(sample.len());
        }
        scale_up(tokens, bytes, as_count(text.len()))
    }

    fn count_exactly(self, text: &str) -> u64 {
        as_count(self.vocabulary().count(text))
    }

    fn vocabulary(self) -> &'static LazyLock<CoreBpe> {
        match self {
            Self::O200k => &O200K,
            Self::Cl100k => &CL100K,
            Self::Llama => &LLAMA,
            Self::Qwen => &QWEN,
            Self::Mistral => &MISTRAL,
            Self::Deepseek => &DEEPSEEK,
        }
    }
}

/// How many tokens `text` has by the default vocabulary.
pub fn count_tokens(text: &str) -> u64 {
    Vocabulary::default().count(text)
}

/// What tokens are counted with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TokenCounter {
    /// Letters: costs next to nothing, right to about a third.
    #[default]
    Letters,
    /// A real vocabulary: for whoever has a budget, a price or a context window to keep to.
    Vocabulary(Vocabulary),
}

impl TokenCounter {
    /// How many tokens `text` has; at least 1 for a text that is not empty.
    pub fn count(self, text: &str) -> u64 {
        match self {
            Self::Letters => count_roughly(text),
            Self::Vocabulary(vocabulary) => vocabulary.count(text),
        }
    }

    /// The rough count of so many letters of ASCII and others.
    pub(super) fn of_letters(ascii: u64, other: u64) -> u64 {
        ascii.div_ceil(ASCII_CHARS_PER_TOKEN).saturating_add(other.div_ceil(OTHER_CHARS_PER_TOKEN))
    }

    /// Its name on what was counted with it.
    pub const fn counted_by(self) -> CountedBy {
        match self {
            Self::Letters => CountedBy::Letters,
            Self::Vocabulary(_) => CountedBy::Vocabulary,
        }
    }
}

fn count_roughly(text: &str) -> u64 {
    let (mut ascii, mut other) = (0_u64, 0_u64);
    for letter in text.chars() {
        if letter.is_ascii() {
            ascii += 1;
        } else {
            other += 1;
        }
    }
    TokenCounter::of_letters(ascii, other)
}

/// Pieces of a long text, evenly apart, [`COUNTED_BYTES_MAX`] together at most.
fn samples(text: &str) -> impl Iterator<Item = &str> {
    let length = COUNTED_BYTES_MAX / SAMPLES;
    let last = text.len().saturating_sub(length);
    (0..SAMPLES).map(move |sample| {
        let from = text.floor_char_boundary(last * sample / (SAMPLES - 1));
        let to = text.floor_char_boundary(from.saturating_add(length).min(text.len()));
        text.get(from..to).unwrap_or_default()
    })
}

/// `tokens` of `counted` bytes, for `whole` bytes; rounded up.
pub(super) fn scale_up(tokens: u64, counted: u64, whole: u64) -> u64 {
    let scaled = (u128::from(tokens) * u128::from(whole)).div_ceil(u128::from(counted.max(1)));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

pub(super) fn as_count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

/// About so many tokens all texts of a value have; what is not text in it is not counted.
pub(super) fn tokens_of(value: &Value) -> u64 {
    match value {
        Value::String(text) if text.starts_with("data:") => 0,
        Value::String(text) => TokenCounter::Letters.count(text),
        Value::Array(items) => items.iter().map(tokens_of).sum(),
        Value::Object(fields) => {
            fields.iter().map(|(key, field)| TokenCounter::Letters.count(key) + tokens_of(field)).sum()
        }
        Value::Number(_) | Value::Bool(_) | Value::Null => 1,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn counts_of_the_vocabulary() {
        // Pinned: another vocabulary, or another version of the crate that counted otherwise, would change budgets and prices.
        for (text, want) in [
            ("", 0),
            ("a", 1),
            ("hello world", 2),
            ("Say hello in five words.", 6),
            ("안녕하세요", 2),
            ("안녕하세요, 사진 초안", 6),
            ("\u{0}\u{0}", 1),
        ] {
            assert_eq!(count_tokens(text), want, "{text:?}");
        }
    }

    #[test]
    fn families_count_by_their_own_vocabulary() {
        for (model, family, want) in [
            ("gpt-4o-mini", Vocabulary::O200k, 8),
            ("some-model", Vocabulary::O200k, 8),
            ("gpt-3.5-turbo", Vocabulary::Cl100k, 15),
            ("text-embedding-3-small", Vocabulary::Cl100k, 15),
            ("Qwen2.5-0.5B-Instruct-GGUF", Vocabulary::Qwen, 9),
            ("qwen3:8b", Vocabulary::Qwen, 9),
            ("meta-llama/Llama-3.1-8B", Vocabulary::Llama, 8),
            ("deepseek-r1-distill-llama-8b", Vocabulary::Llama, 8),
            ("DeepSeek-V3", Vocabulary::Deepseek, 12),
            ("mistral-nemo", Vocabulary::Mistral, 10),
        ] {
            assert_eq!(Vocabulary::of_model(model), family, "{model}");
            assert_eq!(family.count("안녕하세요, 사진 초안 세 장"), want, "{model}");
            assert_eq!(TokenCounter::Vocabulary(family).count(""), 0);
        }
    }

    #[test]
    fn counts_by_letters() {
        for (text, want) in [("", 0), ("a", 1), ("Say hello in five words.", 6), ("안녕하세요", 3), ("안녕 hi", 2)]
        {
            assert_eq!(TokenCounter::Letters.count(text), want, "{text:?}");
        }
    }

    #[test]
    fn a_long_text_is_counted_in_part_and_scaled() {
        let english = "The tide was out and the boats lay on the sand, waiting for the water to come back. ";
        let korean = "썰물이 빠지자 배들은 모래 위에 누워 물이 다시 들어오기를 기다렸다. ";
        for (head, tail) in [(english, english), (korean, korean), (english, korean), (korean, english)] {
            let text = head.repeat(2_000) + &tail.repeat(2_000);
            let (exact, counted) = (Vocabulary::default().count_exactly(&text), count_tokens(&text));
            let apart = exact.abs_diff(counted);
            assert!(apart * 100 <= exact * 6, "{counted} for {exact}: {head:.10} {tail:.10}");
        }
    }

    #[test]
    fn nothing_overflows() {
        assert_eq!(scale_up(u64::MAX, 1, u64::MAX), u64::MAX);
        assert_eq!((scale_up(3, 2, 4), scale_up(3, 2, 3), scale_up(0, 0, 9)), (6, 5, 0));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn any_text_is_counted_and_samples_stay_within_it(text in "(\\PC|[가-힣]|\n| ){0,400}", times in 1_usize..60) {
            let long = text.repeat(times);
            let tokens = count_tokens(&long);
            prop_assert_eq!(tokens == 0, long.is_empty());
            prop_assert!(tokens <= as_count(long.len()) + as_count(SAMPLES));
            let sampled: usize = samples(&long).map(str::len).sum();
            prop_assert!(sampled <= COUNTED_BYTES_MAX);
        }
    }
}
