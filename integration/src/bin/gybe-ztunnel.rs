//! `gybe-ztunnel SOCKET [ADDRESS...]`: the stand-in for ztunnel as a process. The pods with these addresses take HBONE.
//! Prints its connections, each request and each change of readiness, and ends with status 1 where ztunnel does.

use gybe_integration::failure::Failure;
use gybe_integration::ztunnel::{Fault, Mesh, Ztunnel};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::io::Write;
use std::path::Path;
use std::thread;
use std::time::Duration;

fn main() -> Result<(), Failure> {
    // Each pod takes some ten descriptors, and a user's shell often allows 1,024.
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _unchanged = setrlimit(Resource::RLIMIT_NOFILE, most, most);
    }
    let mut arguments = std::env::args().skip(1);
    let Some(socket) = arguments.next() else {
        return Err(Failure::new("usage: gybe-ztunnel SOCKET [ADDRESS...]"));
    };
    let addresses = arguments.map(|address| address.parse()).collect::<Result<_, _>>()?;
    let ztunnel =
        Ztunnel::start(Path::new(&socket), Fault::default(), Mesh { addresses, ..Mesh::default() })?;
    let (mut printed, mut was_ready, mut connections) = (0, false, 0);
    loop {
        let observed = ztunnel.observed();
        let mut out = std::io::stdout();
        if observed.connections != connections {
            connections = observed.connections;
            writeln!(out, "connection {connections}")?;
        }
        for request in observed.requests.iter().skip(printed) {
            writeln!(out, "{request}")?;
        }
        printed = observed.requests.len();
        if observed.is_ready != was_ready {
            was_ready = observed.is_ready;
            writeln!(out, "{}", if was_ready { "ready" } else { "not ready" })?;
        }
        if let Some(why) = observed.exit {
            return Err(Failure::new(why));
        }
        // The end of the process is a signal; what it prints is for a person.
        thread::sleep(Duration::from_millis(20));
    }
}
