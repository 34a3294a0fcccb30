//! Process 1 of a simulated host: sets up the namespaces in which it was started, keeps them while its standard
//! input is open, then kills all processes and removes the cgroups of the sandboxes.

use std::error::Error;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};
use std::{fs, io};

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::SignalFd;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// The hierarchy of cgroup version 2, or the directory of the hierarchies of version 1.
const CGROUPS: &str = "/sys/fs/cgroup";
/// How long the removal of all cgroups may take.
const REMOVAL: Duration = Duration::from_secs(30);
/// The time between two attempts.
const INTERVAL: Duration = Duration::from_millis(50);

fn main() -> Result<(), Box<dyn Error>> {
    // The inherited /proc has this process under its id outside the PID namespace.
    let outer_pid = fs::read_link("/proc/self")?;
    set_up()?;
    let mut child_ended = SigSet::empty();
    child_ended.add(Signal::SIGCHLD);
    child_ended.thread_block()?;
    writeln!(io::stdout(), "{}", outer_pid.display())?;
    reap_until_closed(&SignalFd::new(&child_ended)?)?;
    kill_all();
    remove_cgroups(&format!("gybe-{}", outer_pid.display()))?;
    Ok(())
}

/// Duplicate address detection is disabled: until it ends, the kernel would select a link-local source address for
/// connections from the bridge. Another interface cannot have the bridge's address here.
const DUPLICATE_ADDRESS_DETECTION: &str = "/proc/sys/net/ipv6/conf/default/accept_dad";

/// Mounts private directories, so that containerd, runc and CNI plugins do not write to the machine's. Cgroups are
/// the exception: a hierarchy exists once per kernel.
fn set_up() -> Result<(), Box<dyn Error>> {
    mount_new("proc", "/proc")?;
    mount_new("tmpfs", "/run")?;
    mount_new("tmpfs", "/var/lib")?;
    mount_new("tmpfs", "/var/log")?;
    for directory in ["/etc", "/opt"] {
        mount_overlay(directory)?;
    }
    for directory in ["/run/netns", "/run/gybe/calls", "/etc/cni/net.d", "/opt/cni/bin"] {
        fs::create_dir_all(directory)?;
    }
    fs::write(DUPLICATE_ADDRESS_DETECTION, "0")?;
    #[expect(
        clippy::disallowed_methods,
        reason = "the test node is set up with ip, as an administrator does"
    )]
    let status = Command::new("ip").args(["link", "set", "lo", "up"]).status()?;
    if !status.success() {
        return Err(format!("ip link set lo up ended with {status}").into());
    }
    Ok(())
}

fn mount_new(kind: &str, target: &str) -> nix::Result<()> {
    mount(Some(kind), target, Some(kind), MsFlags::empty(), None::<&str>)
}

/// Keeps changes below a directory of the machine in the node's memory. The machine may lack the directories of CNI,
/// so these cannot be mount points.
fn mount_overlay(directory: &str) -> Result<(), Box<dyn Error>> {
    let scratch = format!("/run/overlay{directory}");
    let (upper, work) = (format!("{scratch}/upper"), format!("{scratch}/work"));
    fs::create_dir_all(&upper)?;
    fs::create_dir_all(&work)?;
    let options = format!("lowerdir={directory},upperdir={upper},workdir={work}");
    mount(Some("overlay"), directory, Some("overlay"), MsFlags::empty(), Some(options.as_str()))?;
    Ok(())
}

/// Reaps orphaned processes, whose parent process 1 is, until the standard input closes.
fn reap_until_closed(children: &SignalFd) -> nix::Result<()> {
    let input = io::stdin();
    loop {
        let mut descriptors =
            [PollFd::new(input.as_fd(), PollFlags::POLLIN), PollFd::new(children.as_fd(), PollFlags::POLLIN)];
        match poll(&mut descriptors, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
        let [input_closed, _] = descriptors;
        if input_closed.any() == Some(true) {
            return Ok(());
        }
        children.read_signal()?;
        reap(WaitPidFlag::WNOHANG);
    }
}

/// Kills every other process of this PID namespace.
fn kill_all() {
    // An error means that there is no other process.
    let _ = kill(Pid::from_raw(-1), Signal::SIGKILL);
    reap(WaitPidFlag::empty());
}

fn reap(flags: WaitPidFlag) {
    while !matches!(waitpid(None, Some(flags)), Ok(WaitStatus::StillAlive) | Err(_)) {}
}

/// Removes the cgroup of all sandboxes in each hierarchy.
fn remove_cgroups(name: &str) -> io::Result<()> {
    let mut hierarchies = vec![PathBuf::from(CGROUPS)];
    for entry in fs::read_dir(CGROUPS)? {
        hierarchies.push(entry?.path());
    }
    let deadline = Instant::now() + REMOVAL;
    let mut result = Ok(());
    for cgroup in hierarchies.iter().map(|root| root.join(name)).filter(|cgroup| cgroup.is_dir()) {
        // The kernel may be removing a process that was killed.
        let mut removed = remove(&cgroup);
        while removed.is_err() && Instant::now() < deadline {
            sleep(INTERVAL);
            removed = remove(&cgroup);
        }
        result = result.and(removed);
    }
    result
}

/// Removes the subdirectories first. The files in a cgroup belong to the kernel and need no removal.
fn remove(cgroup: &Path) -> io::Result<()> {
    for entry in fs::read_dir(cgroup)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove(&entry.path())?;
        }
    }
    fs::remove_dir(cgroup)
}
