//! HTTP/1.1 by hand, as a kubelet's probe and a scraper do it.

use crate::PATIENCE;
use std::io::{Read, Write};
use std::net::TcpStream;

/// Sends `request` as it stands and returns everything received until the server closes the connection.
#[must_use]
pub fn send(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap_or_else(|error| panic!("{address}: {error}"));
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut response = Vec::new();
    // A server that refuses resets the connection; what it wrote before is the response.
    let _ = stream.read_to_end(&mut response);
    String::from_utf8(response).unwrap()
}

/// Status and body of `GET path`.
#[must_use]
pub fn get(address: &str, path: &str) -> (u16, String) {
    let response = send(address, &format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n"));
    let (head, body) = response.split_once("\r\n\r\n").unwrap_or_else(|| panic!("not HTTP: {response:?}"));
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}
