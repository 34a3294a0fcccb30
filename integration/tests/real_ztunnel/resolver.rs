//! A DNS server for one address, and queries.

use gybe_demo::testnet::namespace::Namespace;
use gybe_test_support::PATIENCE;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The address of every name that this resolver knows.
pub(crate) const ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 53);

const HEADER: usize = 12;

/// Answers each query, by UDP and TCP, at port 53 of a namespace.
pub(crate) struct Resolver {
    end: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Resolver {
    pub(crate) fn start(at: &Namespace) -> Self {
        let any = (Ipv6Addr::UNSPECIFIED, 53);
        let (udp, tcp) = at.run(|| (UdpSocket::bind(any).unwrap(), TcpListener::bind(any).unwrap())).unwrap();
        udp.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        tcp.set_nonblocking(true).unwrap();
        let end = Arc::new(AtomicBool::new(false));
        let [of_udp, of_tcp] = [Arc::clone(&end), Arc::clone(&end)];
        let datagrams = thread::spawn(move || {
            let mut query = [0; 1232];
            while !of_udp.load(Ordering::Acquire) {
                if let Ok((length, client)) = udp.recv_from(&mut query) {
                    udp.send_to(&answer(&query[..length]), client).unwrap();
                }
            }
        });
        let streams = thread::spawn(move || {
            while !of_tcp.load(Ordering::Acquire) {
                let Ok((mut client, _)) = tcp.accept() else {
                    thread::sleep(Duration::from_millis(5));
                    continue;
                };
                client.set_nonblocking(false).unwrap();
                client.set_read_timeout(Some(PATIENCE)).unwrap();
                if let Ok(query) = read_message(&mut client) {
                    write_message(&mut client, &answer(&query)).unwrap();
                }
            }
        });
        Self { end, threads: vec![datagrams, streams] }
    }
}

impl Drop for Resolver {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Release);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// The end of the first question in a message.
fn end_of_question(message: &[u8]) -> usize {
    let mut at = HEADER;
    while message[at] != 0 {
        at += usize::from(message[at]) + 1;
    }
    at + 5
}

/// Answers a query for an A record with the address, and any other without a record.
fn answer(query: &[u8]) -> Vec<u8> {
    let end = end_of_question(query);
    let has_address = query[end - 4..end - 2] == [0, 1];
    let mut answer = query[..end].to_vec();
    // A response, with recursion; one question, and one record or none.
    answer[2..HEADER].copy_from_slice(&[0x81, 0x80, 0, 1, 0, u8::from(has_address), 0, 0, 0, 0]);
    if has_address {
        // The name of the question, A, IN, 60 s, four octets.
        answer.extend([0xc0, 0x0c, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
        answer.extend(ADDRESS.octets());
    }
    answer
}

fn question(name: &str) -> Vec<u8> {
    let mut query = vec![0x12, 0x34, 0x01, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        query.push(label.len().try_into().unwrap());
        query.extend(label.as_bytes());
    }
    query.extend([0, 0, 1, 0, 1]);
    query
}

/// The address in the last record of an answer to `question`.
fn address(answer: &[u8]) -> io::Result<IpAddr> {
    match answer {
        [0x12, 0x34, _, code, _, _, 0, 1..=u8::MAX, .., a, b, c, d] if code & 0xf == 0 => {
            Ok(Ipv4Addr::new(*a, *b, *c, *d).into())
        }
        other => Err(io::Error::other(format!("no address in {other:?}"))),
    }
}

/// Queries the address of a name at port 53 of `server`, by UDP.
pub(crate) fn query_udp(from: &Namespace, server: IpAddr, name: &str) -> io::Result<IpAddr> {
    let any: IpAddr =
        if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    from.run(|| {
        let socket = UdpSocket::bind((any, 0))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        // The answer comes from the address that was queried, or it is not delivered.
        socket.connect((server, 53))?;
        socket.send(&question(name))?;
        let mut answer = [0; 1232];
        let length = socket.recv(&mut answer)?;
        address(&answer[..length])
    })
    .unwrap()
}

/// The same by TCP.
pub(crate) fn query_tcp(from: &Namespace, server: IpAddr, name: &str) -> io::Result<IpAddr> {
    from.run(|| {
        let mut stream = TcpStream::connect_timeout(&SocketAddr::new(server, 53), PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        write_message(&mut stream, &question(name))?;
        address(&read_message(&mut stream)?)
    })
    .unwrap()
}

fn read_message(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 2];
    stream.read_exact(&mut length)?;
    let mut message = vec![0; u16::from_be_bytes(length).into()];
    stream.read_exact(&mut message)?;
    Ok(message)
}

fn write_message(stream: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    let length = u16::try_from(message.len()).unwrap().to_be_bytes();
    stream.write_all(&[&length, message].concat())
}
