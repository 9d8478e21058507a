//! Where an entry's server is. An address that is given and cannot be taken is never replaced by another one.

use super::account::Account;
use crate::{
    cli::import::{
        finding::Outcome,
        scalar::text,
        yaml::{Entry, Value},
    },
    settings::{endpoint::check_base_url, secret::is_variable_name},
};

/// How LiteLLM names a variable of the environment.
pub(super) const VARIABLE: &str = "os.environ/";

/// A text, or the variable that holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Text {
    Plain(String),
    Variable(String),
}

impl Text {
    pub(super) fn of(text: &str) -> Self {
        match text.strip_prefix(VARIABLE).filter(|name| is_variable_name(name)) {
            Some(name) => Self::Variable(name.to_owned()),
            None => Self::Plain(text.to_owned()),
        }
    }
}

/// What an entry says of where its server is.
#[derive(Default, PartialEq)]
pub(super) enum Address {
    /// Nothing: it is the vendor's own.
    #[default]
    Vendors,
    /// This.
    Given(Text),
    /// Something that cannot be taken. What was meant for a machine of one's own must not go to a vendor instead.
    Refused,
}

/// Reads where an entry's server is, and tells what became of it.
pub(super) fn address(path: &str, entry: &Entry, account: &mut Account) -> Address {
    if entry.node.value == Value::Null {
        account.note(path, entry, Outcome::Taken, "stands for no address: the vendor's own");
        return Address::Vendors;
    }
    let Some(read) = account.read(path, entry, text) else { return Address::Refused };
    let read = Text::of(&read);
    match &read {
        Text::Variable(name) => {
            let said =
                format!("an address is not read from {name} by itself: see the comment at its provider's base_url");
            account.note(path, entry, Outcome::Changed, said);
        }
        Text::Plain(text) => match check_base_url(text) {
            Ok(()) => account.note(path, entry, Outcome::Taken, "providers.*.base_url"),
            Err(rule) => {
                account.note(path, entry, Outcome::NotTaken, format!("an address {rule}: its entry was left out"));
                return Address::Refused;
            }
        },
    }
    Address::Given(read)
}
