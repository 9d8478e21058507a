//! `watertight import`: reads another tool's file, writes ours, and tells what became of each key. Never overwrites by itself.

use std::{collections::BTreeMap, path::Path};

use serde_json::json;

use super::{
    finding::{Imported, as_json, as_table, in_short},
    litellm, resilience4j,
    yaml::FILE_BYTES_MAX,
};
use crate::{
    cli::{
        args::{ImportArgs, ImportFrom, ImportOutput},
        exit::Stop,
        run_command::print,
        say::say,
    },
    settings::{
        endpoint::check_base_url,
        folder::ConfigFile,
        load::{Sources, Wanted, load},
    },
};

/// Imports.
pub(in crate::cli) fn import(args: ImportArgs) -> Result<(), Stop> {
    let (output, imported) = match args.from {
        ImportFrom::Resilience4j(args) => {
            if let Some(rule) = args.base_url.as_deref().and_then(|address| check_base_url(address).err()) {
                return Err(Stop::Usage(format!("--base-url {rule}")));
            }
            let options = resilience4j::Options { profiles: args.profile, base_url: args.base_url };
            let bytes = read(&args.output.file)?;
            let imported = resilience4j::import(&args.output.file.display().to_string(), &bytes, &options);
            (args.output, imported)
        }
        ImportFrom::Litellm(output) => {
            let bytes = read(&output.file)?;
            let imported = litellm::import(&output.file.display().to_string(), &bytes);
            (output, imported)
        }
    };
    let imported = imported.map_err(Stop::Usage)?;
    accepted(&imported.config).map_err(Stop::Usage)?;
    deliver(&output, &imported)
}

/// The file's bytes, and one more than is allowed, so that too many can be told.
fn read(path: &Path) -> Result<Vec<u8>, Stop> {
    use std::io::Read as _;
    let told = |error: std::io::Error| Stop::Usage(format!("{}: {error}", path.display()));
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(told)?;
    file.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(told)?;
    Ok(bytes)
}

/// What was made must be what our own loader takes: else nothing is written.
pub(super) fn accepted(config: &str) -> Result<(), String> {
    let loaded = load(&Sources {
        config: Some(&ConfigFile { path: "the imported configuration".to_owned(), bytes: config.as_bytes().to_vec() }),
        folder: Path::new(""),
        agent_folders: &[],
        environment: &BTreeMap::new(),
        flags: &[],
        embedded: &[],
        wanted: Wanted::All,
        read_file: &|_| Err("is not there".to_owned()),
    });
    loaded
        .map(|_| ())
        .map_err(|error| format!("what was made of this file would be refused, which is our fault: {error}"))
}

fn deliver(output: &ImportOutput, imported: &Imported) -> Result<(), Stop> {
    if let Some(path) = &output.output {
        write(path, &imported.config, output.force)?;
    }
    if output.json {
        let config = output.output.is_none().then_some(&imported.config);
        return print(&format!("{}\n", json!({ "config": config, "findings": as_json(&imported.findings) })));
    }
    if output.output.is_none() {
        print(&imported.config)?;
    }
    say(as_table(&imported.findings).trim_end());
    say(&in_short(&imported.findings));
    Ok(())
}

fn write(path: &Path, text: &str, force: bool) -> Result<(), Stop> {
    let shown = path.display();
    let told = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => Stop::Usage(format!("{shown} is there already; --force overwrites it")),
        _ => Stop::Usage(format!("{shown}: {error}")),
    };
    let mut options = std::fs::OpenOptions::new();
    options.write(true);
    if force {
        options.create(true).truncate(true)
    } else {
        options.create_new(true)
    };
    let mut file = options.open(path).map_err(told)?;
    std::io::Write::write_all(&mut file, text.as_bytes()).map_err(told)?;
    say(&format!("wrote {shown}"));
    Ok(())
}
