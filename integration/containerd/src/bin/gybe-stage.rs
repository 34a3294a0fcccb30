//! Process 1 of a stage: furnishes the namespaces it was started in, keeps them while its standard
//! input is open, and leaves nothing behind; what happens on the stage comes from outside.

use std::error::Error;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::SignalFd;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// One hierarchy of the second version, or a directory of hierarchies of the first.
const CGROUPS: &str = "/sys/fs/cgroup";

fn main() -> Result<(), Box<dyn Error>> {
    // The old /proc still shows this process under the number the outside knows it by.
    let outer = fs::read_link("/proc/self")?;
    furnish()?;
    let mut ended = SigSet::empty();
    ended.add(Signal::SIGCHLD);
    ended.thread_block()?;
    writeln!(io::stdout(), "{}", outer.display())?;
    serve(&SignalFd::new(&ended)?)?;
    strike();
    remove_cgroups(&format!("gybe-{}", outer.display()))?;
    Ok(())
}

/// Nobody else can have the bridge's address, and while the kernel makes sure of that, a caller
/// would come from a link-local one.
const DUPLICATES: &str = "/proc/sys/net/ipv6/conf/default/accept_dad";

/// Nothing that containerd, runc or a CNI plugin writes may reach the machine's directories,
/// cgroups excepted: a hierarchy exists once per kernel.
fn furnish() -> Result<(), Box<dyn Error>> {
    place("proc", "/proc")?;
    place("tmpfs", "/run")?;
    place("tmpfs", "/var/lib")?;
    for directory in ["netns", "gybe/net.d", "gybe/bin", "gybe/calls"] {
        fs::create_dir_all(Path::new("/run").join(directory))?;
    }
    fs::write(DUPLICATES, "0")?;
    #[expect(clippy::disallowed_methods, reason = "a harness may run ip, as an administrator would")]
    let status = Command::new("ip").args(["link", "set", "lo", "up"]).status()?;
    if !status.success() {
        return Err(format!("ip link set lo up ended with {status}").into());
    }
    Ok(())
}

fn place(kind: &str, target: &str) -> nix::Result<()> {
    mount(Some(kind), target, Some(kind), MsFlags::empty(), None::<&str>)
}

/// Orphans end here, so this process buries them until the outside lets go.
fn serve(children: &SignalFd) -> nix::Result<()> {
    let input = io::stdin();
    loop {
        let mut awaited =
            [PollFd::new(input.as_fd(), PollFlags::POLLIN), PollFd::new(children.as_fd(), PollFlags::POLLIN)];
        match poll(&mut awaited, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
        let [outside, _] = awaited;
        if outside.any() == Some(true) {
            return Ok(());
        }
        children.read_signal()?;
        bury(WaitPidFlag::WNOHANG);
    }
}

/// Every process of this namespace but this one.
fn strike() {
    // No such process: the stage was empty.
    let _ = kill(Pid::from_raw(-1), Signal::SIGKILL);
    bury(WaitPidFlag::empty());
}

fn bury(flags: WaitPidFlag) {
    while !matches!(waitpid(None, Some(flags)), Ok(WaitStatus::StillAlive) | Err(_)) {}
}

/// The sandboxes' cgroups are all below one name, once in each hierarchy.
fn remove_cgroups(name: &str) -> io::Result<()> {
    let mut hierarchies = vec![PathBuf::from(CGROUPS)];
    for entry in fs::read_dir(CGROUPS)? {
        hierarchies.push(entry?.path());
    }
    for cgroup in hierarchies.iter().map(|root| root.join(name)) {
        if cgroup.is_dir() {
            remove(&cgroup)?;
        }
    }
    Ok(())
}

/// From the leaves up; the files in a cgroup are the kernel's.
fn remove(cgroup: &Path) -> io::Result<()> {
    for entry in fs::read_dir(cgroup)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove(&entry.path())?;
        }
    }
    fs::remove_dir(cgroup)
}
