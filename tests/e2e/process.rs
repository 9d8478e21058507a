//! Processes of the program: run to their end within a bound, or kept until they are dropped.

use std::{
    io::{BufRead as _, BufReader, Read},
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use serde_json::Value;

/// No process of these tests takes longer; on a busy machine a debug build is slow.
pub const BOUND: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(5);

/// How a process ended.
#[derive(Debug)]
pub struct Ended {
    /// Its exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// What it printed.
    pub out: String,
    /// What it said beside.
    pub err: String,
}

impl Ended {
    /// Its one line of JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }

    /// Fails unless it ended with `code` and without a panic.
    #[track_caller]
    pub fn exits(self, code: i32) -> Self {
        assert!(!self.err.contains("panicked") && !self.out.contains("panicked"), "{self:#?}");
        assert_eq!(self.code, Some(code), "{self:#?}");
        self
    }
}

/// A process of the program that dies with this value.
pub struct Running {
    child: Child,
    out: Option<JoinHandle<String>>,
    err: JoinHandle<()>,
    said: Arc<Mutex<String>>,
}

/// The program with arguments, with nothing of this process's environment that it would read.
pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_watertight"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("WATERTIGHT") {
            command.env_remove(name);
        }
    }
    command.args(args).current_dir(env!("CARGO_MANIFEST_DIR")).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs the program to its end.
pub fn watertight(args: &[&str]) -> Ended {
    Running::start(command(args)).end()
}

impl Running {
    /// Starts it.
    pub fn start(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let mut stdout = child.stdout.take();
        let out = stdout.take().map(|mut stdout| {
            std::thread::spawn(move || {
                let mut text = String::new();
                let _ = stdout.read_to_string(&mut text);
                text
            })
        });
        let said = Arc::new(Mutex::new(String::new()));
        let (stderr, saying) = (child.stderr.take().unwrap(), Arc::clone(&said));
        let err = std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines() {
                let Ok(line) = line else { return };
                let mut said = saying.lock().unwrap();
                said.push_str(&line);
                said.push('\n');
            }
        });
        Self { child, out, err, said }
    }

    /// What it said so far on standard error.
    pub fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    /// Waits until it has said `text`.
    #[track_caller]
    pub fn wait_for(&mut self, text: &str) {
        let began = Instant::now();
        while !self.said().contains(text) {
            let over = self.child.try_wait().unwrap().is_some();
            assert!(!over && began.elapsed() < BOUND, "never said {text:?}: {}", self.said());
            std::thread::sleep(LOOK);
        }
    }

    /// Waits for its end.
    #[track_caller]
    pub fn end(self) -> Ended {
        self.end_within(BOUND)
    }

    /// Waits for its end no longer than this.
    #[track_caller]
    pub fn end_within(mut self, bound: Duration) -> Ended {
        let began = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(began.elapsed() < bound, "it does not end: {}", self.said());
            std::thread::sleep(LOOK);
        };
        let out = self.out.take().map(|out| out.join().unwrap()).unwrap_or_default();
        while !self.err.is_finished() && began.elapsed() < bound + BOUND {
            std::thread::sleep(LOOK);
        }
        Ended { code: status.code(), out, err: self.said() }
    }

    /// Sends a signal by its name.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("sh").args(["-c", &format!("kill -{name} {}", self.child.id())]).status().unwrap();
        assert!(sent.success());
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An agent as a process.
pub struct Agent {
    /// Its name.
    pub name: &'static str,
    /// Where it listens.
    pub address: SocketAddr,
    process: Running,
}

impl Agent {
    /// Starts one on a free port.
    pub fn start(name: &'static str, script: Option<&Path>) -> Self {
        Self::start_at(name, "127.0.0.1:0".parse().unwrap(), script)
    }

    /// Starts one there.
    #[track_caller]
    pub fn start_at(name: &'static str, address: SocketAddr, script: Option<&Path>) -> Self {
        let address = address.to_string();
        let mut args = vec!["agent", name, "--listen", &address];
        args.extend(script.iter().flat_map(|script| ["--script", script.to_str().unwrap()]));
        let mut process = Running::start(command(&args));
        process.wait_for("listens on http://");
        let said = process.said();
        let after = said.split("listens on http://").nth(1).unwrap();
        let shown: String = after.chars().take_while(|letter| !letter.is_whitespace() && *letter != ',').collect();
        Self { name, address: shown.parse().unwrap(), process }
    }

    /// Its address as a provider's.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        self.process.kill();
    }
}

/// The five agents of the reference pipeline, the one named `ill` by a script.
pub fn five(ill: Option<(&str, &Path)>) -> Vec<Agent> {
    let script = |name: &str| ill.filter(|(ill, _)| *ill == name).map(|(_, script)| script);
    ["photos", "style", "draft", "review", "meta"].into_iter().map(|name| Agent::start(name, script(name))).collect()
}
