//! LiteLLM's prefixes of models: where each vendor's OpenAI-compatible API is, and which variable holds its key.

/// What is known of a prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Vendor {
    /// The prefix before the first slash.
    pub(super) prefix: &'static str,
    /// Where its API is unless the file says so; `None` = the file has to.
    pub(super) base_url: Option<&'static str>,
    /// The variable that LiteLLM reads its key from; `None` = it needs none.
    pub(super) key_variable: Option<&'static str>,
    /// How it differs from a plain server.
    pub(super) style: Style,
}

/// How a vendor's API is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    /// `base_url` is what requests are joined to.
    Plain,
    /// Ollama's own API lies at the address, OpenAI's below its `/v1`.
    Ollama,
    /// A deployment's address, with a version in the query and the key in a header.
    Azure,
}

const fn plain(prefix: &'static str, base_url: &'static str, key_variable: &'static str) -> Vendor {
    Vendor { prefix, base_url: Some(base_url), key_variable: Some(key_variable), style: Style::Plain }
}

const fn local(prefix: &'static str, base_url: Option<&'static str>, style: Style) -> Vendor {
    Vendor { prefix, base_url, key_variable: None, style }
}

/// The prefixes that speak OpenAI's API somewhere.
const VENDORS: &[Vendor] = &[
    plain("openai", "https://api.openai.com/v1", "OPENAI_API_KEY"),
    plain("text-completion-openai", "https://api.openai.com/v1", "OPENAI_API_KEY"),
    Vendor { prefix: "azure", base_url: None, key_variable: Some("AZURE_API_KEY"), style: Style::Azure },
    plain("anthropic", "https://api.anthropic.com/v1", "ANTHROPIC_API_KEY"),
    plain("gemini", "https://generativelanguage.googleapis.com/v1beta/openai", "GEMINI_API_KEY"),
    plain("groq", "https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    plain("mistral", "https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
    plain("deepseek", "https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
    plain("openrouter", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    plain("together_ai", "https://api.together.xyz/v1", "TOGETHERAI_API_KEY"),
    plain("fireworks_ai", "https://api.fireworks.ai/inference/v1", "FIREWORKS_AI_API_KEY"),
    plain("perplexity", "https://api.perplexity.ai", "PERPLEXITYAI_API_KEY"),
    plain("xai", "https://api.x.ai/v1", "XAI_API_KEY"),
    local("ollama", Some("http://localhost:11434"), Style::Ollama),
    local("ollama_chat", Some("http://localhost:11434"), Style::Ollama),
    local("hosted_vllm", None, Style::Plain),
    local("vllm", None, Style::Plain),
    local("lm_studio", None, Style::Plain),
    local("llamafile", Some("http://127.0.0.1:8080/v1"), Style::Plain),
    local("openai_like", None, Style::Plain),
    local("custom_openai", None, Style::Plain),
];

/// The vendor of `openai/gpt-4o` and the model's name there. A model without a known prefix is OpenAI's, as LiteLLM has it for its
/// own names; a prefix whose API is another is an error with its name.
pub(super) fn vendor_of(model: &str) -> Result<(&'static Vendor, &str), &str> {
    match model.split_once('/') {
        None => VENDORS.first().map(|vendor| (vendor, model)).ok_or(model),
        Some((prefix, name)) => {
            VENDORS.iter().find(|vendor| vendor.prefix == prefix).map(|vendor| (vendor, name)).ok_or(prefix)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes() {
        for (model, want) in [
            ("openai/gpt-4o", Ok(("openai", "gpt-4o"))),
            ("gpt-4o", Ok(("openai", "gpt-4o"))),
            ("ollama/qwen2.5:3b", Ok(("ollama", "qwen2.5:3b"))),
            ("openrouter/meta/llama", Ok(("openrouter", "meta/llama"))),
            ("bedrock/anthropic.claude", Err("bedrock")),
            ("/x", Err("")),
        ] {
            assert_eq!(vendor_of(model).map(|(vendor, name)| (vendor.prefix, name)), want, "{model}");
        }
    }

    #[test]
    fn every_address_is_one_that_our_loader_takes() {
        for vendor in VENDORS {
            if let Some(base_url) = vendor.base_url {
                assert_eq!(crate::settings::endpoint::check_base_url(base_url), Ok(()), "{}", vendor.prefix);
            }
        }
    }
}
