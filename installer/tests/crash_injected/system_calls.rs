//! The program under strace: the system calls of a pass, and a fault at one of them.

use crate::test_node::TestNode;
use std::collections::HashMap;
use std::process::{Command, Output};

/// Runs one pass under strace with these options.
pub(super) fn traced(node: &TestNode, words: &[&str], options: &[&str]) -> Output {
    #[expect(clippy::disallowed_methods, reason = "strace injects the faults")]
    let mut strace = Command::new("strace");
    strace.arg("-qq").args(options).arg(std::env::current_exe().unwrap());
    let [first, rest @ ..] = words else { panic!("no words") };
    strace.arg(first).arg(&node.root).args(rest);
    strace.output().expect("strace runs; install it with integration/setup.sh")
}

/// A system call of a pass.
pub(super) struct Call {
    /// The call as strace prints it.
    pub(super) text: String,
    /// The call's number among those of its name in the whole process, from 1, as strace's `when=` counts.
    pub(super) nth: usize,
    /// Whether the call before it, or a running child, may have changed the disk or a lock.
    pub(super) follows_a_change: bool,
}

/// Calls that change no file, no lock and no child.
const WITHOUT_EFFECT: &str = "brk mmap munmap mprotect mremap madvise read pread64 lseek newfstatat fstat statx \
    fstatfs getdents64 readlink getpid gettid geteuid getrandom prlimit64 sched_getaffinity rt_sigaction \
    rt_sigprocmask sigaltstack set_robust_list";

impl Call {
    pub(super) fn starts_a_child(&self) -> bool {
        ["clone", "clone3", "fork", "vfork"].contains(&self.name()) && !self.text.contains("CLONE_THREAD")
    }

    fn has_an_effect(&self) -> bool {
        match self.name() {
            "openat" => ["O_CREAT", "O_TRUNC"].iter().any(|flag| self.text.contains(flag)),
            "fcntl" => !self.text.contains("F_GETF") && !self.text.contains("F_SETF"),
            name => !WITHOUT_EFFECT.split(' ').any(|other| other == name),
        }
    }

    pub(super) fn name(&self) -> &str {
        self.text.split('(').next().unwrap_or_default()
    }

    pub(super) fn is(&self, name: &str) -> bool {
        self.name() == name
    }

    /// Returns the strace option that injects a fault at this call.
    pub(super) fn injection(&self, with: &str) -> String {
        format!("inject={}:{with}:when={}", self.name(), self.nth)
    }
}

/// Returns the system calls of a pass in order: those after the marker and before `exit_group`.
pub(super) fn calls(node: &TestNode, act: &str) -> Vec<Call> {
    let log = node.root.join("calls");
    let output = traced(node, &["one-pass", act], &["-o", log.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    let (mut counts, mut has_child, mut has_changed) = (HashMap::new(), false, true);
    let text = std::fs::read_to_string(log).unwrap();
    let calls = text.lines().filter(|line| !line.starts_with(['+', '-'])).map(|line| {
        let nth = counts.entry(line.split('(').next().unwrap().to_owned()).or_insert(0);
        *nth += 1;
        let call = Call { text: line.to_owned(), nth: *nth, follows_a_change: has_changed || has_child };
        // A pass reads a child's output to its end after it has waited for the child, and no other file meanwhile.
        let is_at_end = call.is("read") && line.contains(", \"\", ");
        has_child = call.starts_a_child() || has_child && !is_at_end;
        has_changed = call.has_an_effect();
        call
    });
    let calls = calls.skip_while(|call| !call.is("getppid")).skip(1);
    calls.take_while(|call| !call.is("exit_group")).collect()
}
