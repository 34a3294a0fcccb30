//! The program in the pods of the cluster: `PORT` listens there and answers a connection with its number;
//! `PORT=ADDRESS` answers with what a connection from the pod to that address answers.

use std::io::{self, Read, Write};
use std::net::{Ipv6Addr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

/// Less than a client waits.
const TIMEOUT: Duration = Duration::from_secs(3);

fn main() {
    // A client that port 15006 has answered must also reach port 15001: every port listens before any is answered.
    let listeners: Vec<_> = std::env::args().skip(1).map(|argument| listen(&argument)).collect();
    let threads: Vec<_> = listeners.into_iter().map(thread::spawn).collect();
    for thread in threads {
        thread.join().expect("a listener ended");
    }
}

/// Binds the port of an argument, and returns the function that answers its connections.
fn listen(argument: &str) -> impl FnOnce() + Send + use<> {
    let (port, address) = argument.split_once('=').map_or((argument, None), |(port, to)| (port, Some(to)));
    let number = port.parse().expect("a port");
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, number)).expect("a free port");
    let (port, address) = (port.to_owned(), address.map(str::to_owned));
    move || {
        for connection in listener.incoming() {
            let answer = match &address {
                None => port.clone(),
                Some(address) => ask(address).unwrap_or_else(|error| error.to_string()),
            };
            // A client may close its end at once.
            let _ = connection.and_then(|mut connection| connection.write_all(answer.as_bytes()));
        }
    }
}

fn ask(address: &str) -> io::Result<String> {
    let address = address.parse().expect("an address");
    let mut connection = TcpStream::connect_timeout(&address, TIMEOUT)?;
    connection.set_read_timeout(Some(TIMEOUT))?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer)?;
    Ok(answer)
}
