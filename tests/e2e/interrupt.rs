//! Ctrl-C: the program ends at once, and what it asked for upstream ends too.

use std::{
    io::Read as _,
    net::TcpListener,
    sync::mpsc,
    time::{Duration, Instant},
};

use crate::{
    process::{BOUND, Running, command},
    project::{MOMENTLY, folder, step, text},
};

/// The program promises one second; a busy machine gets three.
const END: Duration = Duration::from_secs(3);

#[test]
fn ctrl_c_ends_the_run_and_its_call_upstream() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let mut buffer = [0; 4_096];
        let mut asked = false;
        // Never answers; sees the request, then that the other side has gone.
        while socket.read(&mut buffer).is_ok_and(|bytes| bytes > 0) {
            if !asked {
                asked = true;
                tell.send("asked").unwrap();
            }
        }
        let _ = tell.send("gone");
    });
    // The others stay inside: the only provider would be everybody's.
    let config = format!(
        "[providers.hanging]\nkind = \"http\"\nbase_url = \"http://{address}\"\n[agents.draft]\nprovider = \"hanging\"\n{}",
        ["style", "review", "meta"].map(|name| format!("[agents.{name}]\nprovider = \"embedded\"\n")).concat()
    );
    let project = folder(&[("hanging.toml", &config)]);
    let config = project.path().join("hanging.toml");
    let running = Running::start(command(&["run", MOMENTLY, "--config", text(&config), "--json"]));
    assert_eq!(told.recv_timeout(BOUND), Ok("asked"));
    let began = Instant::now();
    running.signal("INT");
    let ended = running.end().exits(130);
    assert!(began.elapsed() < END, "{:?}", began.elapsed());
    assert_eq!(told.recv_timeout(END), Ok("gone"), "the upstream request goes on");
    assert!(ended.err.contains("interrupted"), "{}", ended.err);
    let json = ended.json();
    assert_eq!((json["status"].as_str(), json["error"]["error_code"].as_str()), (Some("cancelled"), Some("CANCELLED")));
    assert_eq!(step(&json, "photos")["status"], "succeeded", "what was finished is told");
    assert_eq!(step(&json, "draft")["status"], "cancelled");
}

#[test]
fn an_agent_ends_on_a_signal_too() {
    // At once, and often: the moment in which nobody listened yet was short.
    for signal in ["INT", "TERM"].repeat(8) {
        let mut agent = Running::start(command(&["agent", "style"]));
        agent.wait_for("listens on");
        let began = Instant::now();
        agent.signal(signal);
        agent.end().exits(0);
        assert!(began.elapsed() < END, "{signal}: {:?}", began.elapsed());
    }
}
