//! A network namespace of one test, and commands in it.

use crate::programs::run;
use gybe_installer::testnet::namespace::Namespace;

/// Runs `work` in a new network namespace, on a thread of its own. Its loopback interface is up.
///
/// # Panics
/// When the process may not create network namespaces.
#[expect(clippy::panic, reason = "a test that cannot be set up must stop")]
pub fn in_new_namespace<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let created = Namespace::new().and_then(|namespace| namespace.run(work));
    created.unwrap_or_else(|error| {
        panic!(
            "this test needs a network namespace; run it as root, or after integration/as-root.sh: {error}"
        )
    })
}

/// Runs a shell command in this thread's namespace and returns its output.
///
/// # Panics
/// When the command fails.
#[expect(clippy::panic, reason = "a test that cannot be set up must stop")]
pub fn sh(command: &str) -> String {
    // An unprivileged user may not open /run/xtables.lock, the default lock of all legacy programs.
    let script = format!("export XTABLES_LOCKFILE=/proc/self/ns/net; {command}");
    match run("sh", &["-ec", &script], "") {
        Ok(run) if run.code == Some(0) => run.out,
        Ok(run) => panic!("{command}: {}", run.err),
        Err(error) => panic!("{command}: {error}"),
    }
}
