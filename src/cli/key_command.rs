//! `watertight key`: makes a key. It is printed once and kept nowhere; the configuration gets its hash.

use serde_json::json;

use super::{
    args::{KeyAct, KeyArgs, KeyNewArgs},
    exit::{Stop, in_json},
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
        KeyAct::New(new) => in_json(new.json, make(new)),
    }
}

fn make(args: &KeyNewArgs) -> Result<(), Stop> {
    let name = Name::try_new(&args.name).map_err(Stop::usage)?;
    let tenant = args.tenant.as_deref().map(Name::try_new).transpose().map_err(Stop::usage)?;
    let key = new_key().map_err(Stop::usage)?;
    let hash = hex(&hash_of(&key));
    let mut lines = format!("[keys.{}]\nsha256 = \"{hash}\"\n", table_key(name.as_str()));
    if let Some(tenant) = &tenant {
        lines.push_str(&format!("tenant = \"{tenant}\"\n"));
    }
    if args.operator {
        lines.push_str("role = \"operator\"\n");
    }
    if args.json {
        let role = if args.operator { "operator" } else { "caller" };
        let made = json!({ "name": name, "key": key, "sha256": hash, "tenant": tenant, "role": role, "config": lines });
        return print(&format!("{made}\n"));
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
