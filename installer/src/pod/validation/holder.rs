//! Who listens on an address, as `/proc` tells. Best effort: it is for a message.

use crate::pod::manifest::printable;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Somebody who listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Where.
    pub address: SocketAddr,
    /// As whom.
    pub uid: u32,
    /// Which process, where it can be seen: another container's cannot.
    pub process: Option<String>,
}

/// The tables of the calling thread's network namespace.
const TABLES: [&str; 2] = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];

/// `TCP_LISTEN` of include/net/tcp_states.h, as the tables write it.
const LISTENING: &str = "0A";

impl Holder {
    /// Who gets connections to `address`.
    pub fn of(address: SocketAddr) -> Option<Self> {
        let tables = TABLES.iter().filter_map(|table| fs::read_to_string(table).ok());
        let listeners: Vec<Listener> = tables.flat_map(|table| listeners(&table)).collect();
        let exact = listeners.iter().find(|listener| listener.address == address);
        let any = || listeners.iter().find(|listener| listener.hears_everything_like(address));
        let found = exact.or_else(any)?;
        Some(Self { address: found.address, uid: found.uid, process: process(found.inode) })
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Listener {
    address: SocketAddr,
    uid: u32,
    inode: u64,
}

impl Listener {
    /// A socket on `::` hears IPv4 too, unless it was asked not to, which is not told here.
    fn hears_everything_like(&self, address: SocketAddr) -> bool {
        let families_fit = self.address.is_ipv6() || address.is_ipv4();
        self.address.port() == address.port() && self.address.ip().is_unspecified() && families_fit
    }
}

/// The listening sockets of such a table (Documentation/networking/proc_net_tcp.rst).
fn listeners(table: &str) -> Vec<Listener> {
    table.lines().skip(1).filter_map(listener).collect()
}

fn listener(line: &str) -> Option<Listener> {
    let mut words = line.split_whitespace();
    let address = address(words.nth(1)?)?;
    // The remote address lies between.
    words.nth(1).filter(|state| *state == LISTENING)?;
    let uid = words.nth(3)?.parse().ok()?;
    Some(Listener { address, uid, inode: words.nth(1)?.parse().ok()? })
}

/// `0100007F:3A9A`: 32 bits at a time, in the machine's own byte order.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let word = |at: usize| u32::from_str_radix(ip.get(at * 8..at * 8 + 8)?, 16).ok().map(u32::to_ne_bytes);
    let ip: IpAddr = match ip.len() {
        8 => Ipv4Addr::from(word(0)?).into(),
        32 => {
            let bytes = [word(0)?, word(1)?, word(2)?, word(3)?];
            Ipv6Addr::from_bits(u128::from_be_bytes(bytes.concat().try_into().ok()?)).into()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

/// The process that has the socket: `123 (envoy)`.
fn process(inode: u64) -> Option<String> {
    let link = format!("socket:[{inode}]");
    let has_it = |pid: &str| {
        let fds = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
        let mut links = fds.filter_map(|fd| fs::read_link(fd.ok()?.path()).ok());
        links.any(|target| target.as_os_str() == link.as_str()).then_some(())
    };
    let entries = fs::read_dir("/proc").ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut pids = entries.filter(|name| name.bytes().all(|b| b.is_ascii_digit()));
    let pid = pids.find(|pid| has_it(pid).is_some())?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Some(format!("{pid} ({})", printable(name.trim_end())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn the_kernels_tables_are_read() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
             \x20  0: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     7        0 15 1 0 100 0\n\
             \x20  1: 00000000:0017 00000000:0000 01 00000000:00000000 00:00000000 00000000     7        0 16 1 0 100 0\n\
             \x20  2: nonsense\n";
        let address = "0.0.0.0:22".parse().unwrap();
        assert_eq!(listeners(table), [Listener { address, uid: 7, inode: 15 }]);
    }

    #[test]
    fn this_very_process_is_found_by_the_address_it_listens_on() {
        for here in ["127.0.0.1:0", "[::1]:0", "0.0.0.0:0"] {
            let listener = TcpListener::bind(here).unwrap();
            let bound = listener.local_addr().unwrap();
            let asked = if bound.ip().is_unspecified() {
                SocketAddr::new(Ipv4Addr::new(127, 0, 0, 6).into(), bound.port())
            } else {
                bound
            };
            let holder = Holder::of(asked).unwrap();
            assert_eq!(holder.address, bound);
            let process = holder.process.unwrap();
            assert!(process.starts_with(&format!("{} (", std::process::id())), "{process}");
        }
        assert_eq!(Holder::of("127.0.0.1:1".parse().unwrap()), None);
    }
}
