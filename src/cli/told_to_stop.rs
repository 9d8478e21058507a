//! How a person or a supervisor of processes tells a server to stop.

/// The number of SIGXFSZ, which is the same on all of these.
#[cfg(all(any(target_os = "linux", target_os = "macos"), any(target_arch = "x86_64", target_arch = "aarch64")))]
const FILE_SIZE_EXCEEDED: i32 = 25;

/// A write beyond the limit of the size of files is an error like a full disk from here on, and no longer the silent end of the process.
pub(super) fn outlive_file_size_limit() {
    #[cfg(all(any(target_os = "linux", target_os = "macos"), any(target_arch = "x86_64", target_arch = "aarch64")))]
    // What is heard once is never the system's own again. Nobody listens: whoever writes is told.
    drop(tokio::signal::unix::signal(tokio::signal::unix::SignalKind::from_raw(FILE_SIZE_EXCEEDED)));
}

/// Ctrl-C, or SIGTERM where there is one.
pub(super) async fn told_to_stop() {
    let interrupt = tokio::signal::ctrl_c();
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = interrupt => {}
                _ = terminate.recv() => {}
            }
            return;
        }
    }
    let _ = interrupt.await;
}
