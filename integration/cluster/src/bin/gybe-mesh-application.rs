//! `gybe-mesh-application`: the program in the pods of `make -C integration mesh` and `make -C integration existing`.
//!
//! `serve` answers HTTP requests with what it received. At its control port, which pods exclude from the redirection,
//! it makes requests from inside the pod: `/get/HOST:PORT/PATH`, `/load/HOST:PORT/PATH` one after the other until
//! `/counts` returns how many there were, and `/resolve/HOST`. `get` makes one request, for a pod that ends.

use std::error::Error;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv6Addr, TcpListener, TcpStream, ToSocketAddrs};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use clap::Parser;
use serde_json::{Value, json};

/// Longer than a busy machine takes to answer, and less than the scenarios wait.
const TIMEOUT: Duration = Duration::from_secs(15);
/// The time between two requests of a load.
const PACE: Duration = Duration::from_millis(10);
/// The longest request or answer.
const LIMIT: u64 = 64 << 10;
/// The longest list of failures of a load.
const FAILURES: usize = 20;

/// Answers HTTP requests, or makes one.
#[derive(Debug, Parser)]
enum Arguments {
    /// Answers requests at these ports, and serves the control port
    Serve {
        #[arg(long)]
        control: u16,
        ports: Vec<u16>,
    },
    /// Makes a request, and fails if it is not answered with 200
    Get { target: String },
}

fn main() -> ExitCode {
    let result = match Arguments::parse() {
        Arguments::Serve { control, ports } => serve(control, &ports),
        Arguments::Get { target } => match get(&target) {
            Ok((200, _)) => Ok(()),
            answer => Err(format!("{target}: {answer:?}").into()),
        },
    };
    result.map_or_else(
        |error| {
            let _closed = writeln!(io::stderr(), "gybe-mesh-application: {error}");
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    )
}

fn serve(control: u16, ports: &[u16]) -> Result<(), Box<dyn Error>> {
    let load = Arc::new(Mutex::new(Load::default()));
    for port in ports {
        listen(*port, |request| (200, request.received()))?;
    }
    let control = listen(control, move |request| control_answer(request, &load))?;
    control.join().map_err(|_| "the control port's thread panicked".into())
}

/// Answers each request to a port in a thread of its own.
fn listen(
    port: u16,
    answer: impl Fn(&Request) -> (u16, Value) + Send + Sync + 'static,
) -> io::Result<thread::JoinHandle<()>> {
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))?;
    let answer = Arc::new(answer);
    Ok(thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            let answer = Arc::clone(&answer);
            // A client may close its end at once.
            thread::spawn(move || exchange(connection, |request| answer(request)));
        }
    }))
}

/// What is known about a request.
#[derive(Debug, Default)]
struct Request {
    path: String,
    /// The address at the other end of the connection.
    peer: String,
    /// The client that the server's sidecar authenticated.
    client: Option<String>,
    /// A sidecar gave the request an id.
    has_id: bool,
}

impl Request {
    fn received(&self) -> Value {
        let pod = std::env::var("HOSTNAME").unwrap_or_default();
        json!({ "pod": pod, "peer": self.peer, "client": self.client, "has_id": self.has_id })
    }
}

fn exchange(mut connection: TcpStream, answer: impl FnOnce(&Request) -> (u16, Value)) -> io::Result<()> {
    connection.set_read_timeout(Some(TIMEOUT))?;
    connection.set_write_timeout(Some(TIMEOUT))?;
    let peer = connection.peer_addr()?.ip().to_canonical().to_string();
    let mut request = Request { peer, ..Request::default() };
    for (number, line) in BufReader::new((&connection).take(LIMIT)).lines().enumerate() {
        let line = line?;
        if line.is_empty() {
            break;
        }
        if number == 0 {
            request.path = line.split(' ').nth(1).unwrap_or_default().to_owned();
            continue;
        }
        let (name, value) = line.split_once(':').unwrap_or_default();
        match name.to_ascii_lowercase().as_str() {
            "x-forwarded-client-cert" => request.client = Some(value.trim().to_owned()),
            "x-request-id" => request.has_id = true,
            _ => {}
        }
    }
    let (status, body) = answer(&request);
    let body = body.to_string();
    let head = format!("HTTP/1.1 {status} .\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    connection.write_all((head + &body).as_bytes())
}

/// Requests one after the other.
#[derive(Debug, Default)]
struct Load {
    is_running: bool,
    requests: u64,
    failed: u64,
    failures: Vec<String>,
}

fn control_answer(request: &Request, load: &Arc<Mutex<Load>>) -> (u16, Value) {
    let path = request.path.trim_start_matches('/');
    let (verb, target) = path.split_once('/').unwrap_or((path, ""));
    let mut state = load.lock().unwrap_or_else(PoisonError::into_inner);
    match verb {
        "get" => {
            drop(state);
            let answer = get(target).map_or_else(
                |error| json!({ "error": error.to_string() }),
                |(status, body)| json!({ "status": status, "body": body }),
            );
            (200, answer)
        }
        "resolve" => {
            drop(state);
            let found = (target, 0).to_socket_addrs();
            let addresses: Vec<String> = found.into_iter().flatten().map(|it| it.ip().to_string()).collect();
            (200, json!(addresses))
        }
        "load" => {
            *state = Load { is_running: true, ..Load::default() };
            let (load, target) = (Arc::clone(load), target.to_owned());
            thread::spawn(move || request_again_and_again(&load, &target));
            (200, json!({}))
        }
        "counts" => {
            state.is_running = false;
            let Load { requests, failed, failures, .. } = &*state;
            (200, json!({ "requests": requests, "failed": failed, "failures": failures }))
        }
        _ => (404, json!({})),
    }
}

fn request_again_and_again(load: &Mutex<Load>, target: &str) {
    loop {
        let answer = get(target);
        let mut state = load.lock().unwrap_or_else(PoisonError::into_inner);
        if !state.is_running {
            return;
        }
        state.requests += 1;
        if !matches!(&answer, Ok((200, body)) if serde_json::from_str::<Value>(body).is_ok()) {
            state.failed += 1;
            if state.failures.len() < FAILURES {
                state.failures.push(format!("{answer:?}"));
            }
        }
        drop(state);
        thread::sleep(PACE);
    }
}

/// Requests `HOST:PORT/PATH` and returns the status and the body.
fn get(target: &str) -> io::Result<(u16, String)> {
    let (host, path) = target.split_once('/').unwrap_or((target, ""));
    let mut connection = connect(host)?;
    connection.set_read_timeout(Some(TIMEOUT))?;
    connection.set_write_timeout(Some(TIMEOUT))?;
    let request = format!("GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    connection.write_all(request.as_bytes())?;
    let mut answer = String::new();
    connection.take(LIMIT).read_to_string(&mut answer)?;
    let incomplete = || io::Error::new(io::ErrorKind::UnexpectedEof, format!("not an answer: {answer:?}"));
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(incomplete)?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(incomplete)?;
    Ok((status, body.to_owned()))
}

/// Connects to the first address of the host that accepts.
fn connect(host: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in host.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, TIMEOUT) {
            Ok(connection) => return Ok(connection),
            Err(error) => last = error,
        }
    }
    Err(last)
}
