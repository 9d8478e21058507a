//! `watertight key`: makes a key. It is printed once and kept nowhere; the configuration gets its hash.

use super::{
    args::{KeyAct, KeyArgs, KeyNewArgs},
    exit::Stop,
    run_command::print,
    say::say,
};
use crate::{
    model::{hex::hex, name::Name},
    serve::access::keys::{hash_of, new_key},
};

/// Does what is asked.
pub(super) fn key(args: &KeyArgs) -> Result<(), Stop> {
    match &args.act {
        KeyAct::New(new) => make(new),
    }
}

fn make(args: &KeyNewArgs) -> Result<(), Stop> {
    let name = Name::try_new(&args.name).map_err(Stop::usage)?;
    let tenant = args.tenant.as_deref().map(Name::try_new).transpose().map_err(Stop::usage)?;
    let key = new_key().map_err(Stop::usage)?;
    let mut lines = format!("[keys.{}]\nsha256 = \"{}\"\n", table_key(name.as_str()), hex(&hash_of(&key)));
    if let Some(tenant) = tenant {
        lines.push_str(&format!("tenant = \"{tenant}\"\n"));
    }
    if args.operator {
        lines.push_str("role = \"operator\"\n");
    }
    // A comment, so that all of standard error can be added to the file as it is.
    say("# The key, shown this once, is the line on standard output. For watertight.toml:");
    say("");
    say(lines.trim_end());
    print(&format!("{key}\n"))
}

/// A name with a dot in it is quoted, or TOML would read two tables.
fn table_key(name: &str) -> String {
    if name.contains('.') { format!("\"{name}\"") } else { name.to_owned() }
}
