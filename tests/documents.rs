//! Documents must not win against code: pages of error codes, metrics, defaults, exit codes, commands, paths and excerpts are compared
//! with what the code and the built program say. Decision records have `tests/docs.rs`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot be set up has failed")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::{Command, Output},
};

use watertight::{
    model::{envelope::ErrorCode, name::Name, run::Cause},
    runtime::metric::{ALL, Kind},
    workflow::{
        check::load,
        definition::{self, OnCause},
    },
};

const ARCHITECTURE_LINES_MAX: usize = 200;
/// Where paths in backticks begin; what begins otherwise is no path of this repository.
const ROOTS: [&str; 6] = ["src/", "docs/", "examples/", "agents/", "tests/", ".ci/"];
/// Labels that a metric may have.
const LABELS: [&str; 17] = [
    "-",
    "agent",
    "feature",
    "breaker",
    "state",
    "from",
    "to",
    "reason",
    "verdict",
    "kind",
    "status",
    "provider",
    "model",
    "result",
    "compartment",
    "action",
    "cause",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The cells of the rows under the table head `head`.
fn table<'a>(text: &'a str, head: &str) -> Vec<Vec<&'a str>> {
    let lines = text.lines().skip_while(|line| *line != head).skip(2);
    let rows: Vec<Vec<&str>> = lines
        .take_while(|line| line.starts_with('|'))
        .map(|row| row.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    assert!(!rows.is_empty(), "there is no table {head}");
    rows
}

/// The lines of all fenced blocks of a language.
fn blocks<'a>(text: &'a str, language: &str) -> Vec<Vec<&'a str>> {
    let fence = format!("```{language}");
    let mut blocks = Vec::new();
    let mut lines = text.lines();
    while lines.by_ref().any(|line| line == fence) {
        blocks.push(lines.by_ref().take_while(|line| *line != "```").collect());
    }
    assert!(!blocks.is_empty(), "there is no block of {language}");
    blocks
}

/// Texts between single backticks, fenced blocks left out.
fn quoted(text: &str) -> Vec<&str> {
    let prose = text.split("```").step_by(2);
    prose.flat_map(|part| part.split('`').skip(1).step_by(2)).collect()
}

fn watertight(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_watertight")).args(arguments).current_dir(root()).output().unwrap()
}

fn stdout(arguments: &[&str]) -> String {
    let output = watertight(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn pages() -> Vec<(String, String)> {
    let mut pages = vec!["README.md".to_owned()];
    for folder in ["docs", "docs/errors"] {
        for entry in fs::read_dir(root().join(folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if Path::new(&name).extension().is_some_and(|extension| extension == "md") {
                pages.push(format!("{folder}/{name}"));
            }
        }
    }
    pages.into_iter().map(|page| (read(&page), page)).map(|(text, page)| (page, text)).collect()
}

/// How a page calls a code's status and whether it is worth trying again.
fn nature(code: ErrorCode) -> (String, &'static str) {
    match code {
        ErrorCode::AgentError => ("as sent".to_owned(), "as sent"),
        code => (code.http_status().to_string(), if code.retryable() { "yes" } else { "no" }),
    }
}

#[test]
fn every_code_has_its_page() {
    let index = read("docs/errors/README.md");
    let rows = table(&index, "| code | HTTP | retryable | in one sentence | sent |");
    let order: Vec<String> = rows.iter().map(|row| row[0].to_owned()).collect();
    let codes: Vec<String> = ErrorCode::ALL.iter().map(|code| format!("[{code}]({code}.md)")).collect();
    assert_eq!(order, codes, "docs/errors/README.md lists each code once, in the order of the code");
    for (code, row) in ErrorCode::ALL.iter().zip(rows) {
        let page = read(&format!("docs/errors/{code}.md"));
        let (status, retryable) = nature(*code);
        assert_eq!((row[1], row[2]), (status.as_str(), retryable), "{code}");
        assert!(page.starts_with(&format!("# {code}\n\n{} HTTP status: ", row[3])), "{code}: head of its page");
        let facts = match code {
            ErrorCode::AgentError => "HTTP status: as the agent sent it, else 502. Retryable: as the agent sent it.",
            _ => &format!("HTTP status: {status}. Retryable: {retryable}."),
        };
        assert!(page.contains(facts), "{code}: its page must say: {facts}");
        assert_eq!(page.contains("**Nothing sends this yet.**"), row[4] == "not yet", "{code}: sent or not");
        for heading in ["## Cause\n", "## What you can do\n"] {
            assert!(page.contains(heading), "{code}: {heading}");
        }
    }
    let files = fs::read_dir(root().join("docs/errors")).unwrap().count();
    assert_eq!(files, ErrorCode::ALL.len() + 1, "docs/errors has a page without a code");
}

#[test]
fn codes_that_go_out_are_called_sent() {
    let source = read("src/runtime/refusal.rs");
    for code in ErrorCode::ALL {
        let goes_out = source.contains(&format!("ErrorCode::{code:?}"));
        let page = read(&format!("docs/errors/{code}.md"));
        assert!(!(goes_out && page.contains("**Nothing sends this yet.**")), "{code} goes out, its page denies it");
    }
}

#[test]
fn the_list_of_metrics_is_what_the_code_has() {
    let text = read("docs/metrics.md");
    let rows = table(&text, "| metric | kind | labels | meaning |");
    let listed: Vec<(String, String, String)> =
        rows.iter().map(|row| (row[0].trim_matches('`').to_owned(), row[1].to_owned(), row[3].to_owned())).collect();
    let kind = |kind| match kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram => "histogram",
    };
    let code: Vec<(String, String, String)> = ALL
        .iter()
        .map(|metric| (metric.name.to_owned(), kind(metric.kind).to_owned(), metric.help.to_owned()))
        .collect();
    assert_eq!(listed, code);
    for row in rows {
        assert!(row[2].split(", ").all(|label| LABELS.contains(&label)), "{}: labels {}", row[0], row[2]);
    }
}

#[test]
fn every_metric_that_a_page_names_exists() {
    let known: BTreeSet<&str> = ALL.iter().map(|metric| metric.name).collect();
    for (page, text) in pages() {
        let names = quoted(&text).into_iter().filter(|name| name.starts_with("watertight_"));
        for name in names {
            assert!(known.contains(name), "{page}: there is no metric {name}");
        }
    }
}

#[test]
fn every_path_that_a_page_names_exists() {
    for (page, text) in pages() {
        for path in quoted(&text).into_iter().filter(|text| ROOTS.iter().any(|root| text.starts_with(root))) {
            assert!(root().join(path).exists(), "{page}: there is no {path}");
        }
        // Pictures of an excerpt are the excerpt's.
        let prose: String = text.split("```").step_by(2).collect();
        let links = prose.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        let folder = Path::new(&page).parent().unwrap();
        for link in links.filter(|link| !link.contains("://")) {
            let target = link.split('#').next().unwrap_or_default();
            assert!(root().join(folder).join(target).exists(), "{page}: the link {link} leads nowhere");
        }
    }
}

#[test]
fn the_architecture_is_one_sitting() {
    let lines = read("docs/ARCHITECTURE.md").lines().count();
    assert!(lines <= ARCHITECTURE_LINES_MAX, "{lines} lines, at most {ARCHITECTURE_LINES_MAX}");
}

/// A word of a command without the quotes that keep a shell from reading it.
fn unquoted(word: &str) -> &str {
    word.trim_matches('\'')
}

/// The address is one that the service has by default, the path one of its routes, and what is sent is there.
fn is_a_route_of_the_service(request: &str, line: &str) {
    let mut words = request.split_whitespace().map(unquoted);
    let address = words.find(|word| word.starts_with("http")).unwrap_or_else(|| panic!("{line}"));
    let path = address.strip_prefix("http://127.0.0.1:7800").unwrap_or_else(|| panic!("another address: {line}"));
    let path = path.split('?').next().unwrap_or_default().replace("RUN_ID", "{id}");
    let sources = ["runs/accept", "runs/events", "runs/find", "runs/linked", "agents/list"];
    let is_there = sources
        .iter()
        .map(|source| read(&format!("src/serve/{source}.rs")))
        .any(|source| source.contains(&format!("path = \"{path}\"")));
    assert!(is_there, "{line}: there is no route {path}");
    for (_, file) in request.split_whitespace().filter_map(|word| word.split_once("=@")) {
        assert!(root().join(file).exists(), "{line}: there is no {file}");
    }
}

#[test]
fn every_command_of_the_readme_is_one() {
    let text = read("README.md");
    let mut seen = BTreeSet::new();
    for line in blocks(&text, "sh").concat() {
        let command = line.split(" # ").next().unwrap_or_default().trim().trim_end_matches('&');
        let own = command.split_once("-- ").or_else(|| command.split_once("target/release/watertight "));
        if let Some(request) = command.strip_prefix("curl ") {
            is_a_route_of_the_service(request, line);
            continue;
        }
        let Some((_, own)) = own.filter(|_| command.contains("release")) else {
            assert!(command.starts_with("cargo "), "what is {command}?");
            continue;
        };
        let words: Vec<&str> = own.split_whitespace().collect();
        // The flags of `import` are those of the tool that is imported from.
        let command = if ["import", "key"].contains(&words[0]) { &words[..2] } else { &words[..1] };
        let help = stdout(&[command, &["--help"]].concat());
        for flag in words.iter().filter(|word| word.starts_with("--")) {
            assert!(help.contains(flag), "{line}: `{}` has no {flag}", words[0]);
        }
        for file in words.iter().filter(|word| ROOTS.iter().any(|root| word.starts_with(root))) {
            assert!(root().join(file).exists(), "{line}: there is no {file}");
        }
        seen.insert(words[0]);
    }
    assert_eq!(seen, BTreeSet::from(["run", "check", "agent", "import", "serve", "rerun"]));
    for example in quoted(&text).into_iter().chain(text.split("--example ").skip(1)) {
        let name = example.split_whitespace().next().unwrap_or_default();
        if text.contains(&format!("--example {name} ")) {
            let is_there = [format!("examples/{name}.rs"), format!("examples/{name}/main.rs")]
                .iter()
                .any(|path| root().join(path).exists());
            assert!(is_there, "there is no example {name}");
        }
    }
}

#[test]
fn the_exit_codes_of_the_readme_are_the_programs() {
    let text = read("README.md");
    let rows = table(&text, "| code | meaning |");
    let help = stdout(&["--help"]).split_whitespace().collect::<Vec<_>>().join(" ");
    let said: Vec<String> = rows
        .iter()
        .map(|row| if row[0] == "130" { format!("{} {}.", row[0], row[1]) } else { format!("{} {},", row[0], row[1]) })
        .collect();
    assert!(help.contains(&format!("Exit codes: {}", said.join(" "))), "{said:?} is not what the help says: {help}");
    let source = read("src/cli/exit.rs");
    for row in rows.iter().filter(|row| row[0] != "0") {
        assert!(source.contains(&format!("=> {},", row[0])), "no way to end gives {}", row[0]);
    }
    assert_eq!(watertight(&["run", "no/such/folder"]).status.code(), Some(2));
}

/// One agent on each kind of provider, nothing else said.
const BARE: &str = "[providers.model]\nkind = \"openai\"\nbase_url = \"http://127.0.0.1:9/v1\"\nmodel = \"m\"\n\
    [providers.service]\nkind = \"http\"\nbase_url = \"http://127.0.0.1:9\"\n\
    [agents.draft]\nprovider = \"model\"\n[agents.meta]\nprovider = \"service\"\n[agents.photos]\nprovider = \"embedded\"\n";

#[test]
fn the_defaults_of_the_readme_are_what_the_loader_says() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("watertight.toml"), BARE).unwrap();
    let explained = stdout(&["check", folder.path().to_str().unwrap(), "--explain", "--json"]);
    let explained: Vec<serde_json::Value> = serde_json::from_str(&explained).unwrap();
    let mut effective: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for row in &explained {
        let key = row["key"].as_str().unwrap();
        let general = ["draft", "meta", "photos", "model", "service", "embedded"]
            .iter()
            .find_map(|name| {
                let (floor, rest) = key.split_once('.')?;
                let rest = rest.strip_prefix(name)?.strip_prefix('.')?;
                Some(format!("{floor}.X.{rest}"))
            })
            .unwrap_or_else(|| key.to_owned());
        effective.entry(general).or_default().insert(row["value"].as_str().unwrap().to_owned());
    }
    let text = read("README.md");
    for row in table(&text, "| key | default | what it is |") {
        let key = row[0].trim_matches('`');
        let said: BTreeSet<String> = quoted(row[1]).into_iter().map(str::to_owned).collect();
        let known = effective.get(key).unwrap_or_else(|| panic!("README.md: there is no key {key}"));
        assert_eq!(&said, known, "README.md: the default of {key}");
    }
}

#[test]
fn the_excerpt_in_the_readme_is_what_comes_out() {
    let post = stdout(&["run", "examples/momently", "--quiet"]);
    let mut lines = post.lines();
    for excerpt in blocks(&read("README.md"), "text") {
        for line in excerpt.into_iter().filter(|line| *line != "...") {
            assert!(lines.by_ref().any(|own| own == line), "README.md shows a line that the post has not: {line}");
        }
    }
}

#[test]
fn the_code_in_the_readme_is_the_examples() {
    let source = read("examples/custom_agent.rs");
    for block in blocks(&read("README.md"), "rust") {
        let parts = block.split(|line| line.is_empty());
        for part in parts {
            assert!(source.contains(&part.join("\n")), "examples/custom_agent.rs does not have:\n{}", part.join("\n"));
        }
    }
}

/// The page on workflows names every key that the parser knows, and what it shows is a workflow.
#[test]
fn the_page_on_workflows_is_what_the_parser_takes() {
    let page = read("docs/workflows.md");
    let source = read("src/workflow/parse.rs");
    let listed = source.split("_KEYS: [&str; ").skip(1).map(|rest| rest.split("];").next().unwrap());
    let keys: Vec<&str> = listed.flat_map(|list| list.split('"').skip(1).step_by(2)).collect();
    assert!(keys.len() > 20, "{keys:?}");
    let words = quoted(&page);
    for key in keys.iter().filter(|key| !["workflow", "inputs", "step"].contains(*key)) {
        let is_there = words.iter().any(|word| word == key || word.ends_with(&format!(".{key}")));
        assert!(is_there, "docs/workflows.md does not explain `{key}`");
    }
    for word in Cause::ALL.map(Cause::as_str).into_iter().chain(OnCause::ALL.map(OnCause::as_str)) {
        assert!(words.contains(&word), "docs/workflows.md does not explain `{word}`");
    }
    for block in blocks(&page, "toml") {
        let bytes = block.join("\n").into_bytes();
        let agents = ["places", "draft", "review", "publish"].map(|agent| Name::try_new(agent).unwrap()).into();
        load("docs/workflows.md", &bytes, &agents).unwrap();
    }
    let kib = |bytes: usize| format!("{} KiB", bytes / 1024);
    let mib = |bytes: usize| format!("{} MiB", bytes / 1024 / 1024);
    for limit in [
        format!("{} steps", definition::STEPS_MAX),
        format!("{} inputs", definition::INPUTS_MAX),
        format!("{} fields", definition::FIELDS_MAX),
        format!("{} an expression", kib(definition::EXPRESSION_BYTES_MAX)),
        format!("{} a `default`", kib(definition::DEFAULT_BYTES_MAX)),
        format!("{} revisions", definition::REVISIONS_MAX),
        format!("{} an output", mib(definition::OUTPUT_BYTES_MAX)),
        format!("{} a file", mib(definition::FILE_BYTES_MAX)),
    ] {
        assert!(page.contains(&limit), "docs/workflows.md: {limit}");
    }
}
