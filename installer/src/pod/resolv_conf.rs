//! The DNS servers of a pod: the `nameserver` lines of its `/etc/resolv.conf`.

use nix::libc::O_NONBLOCK;
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// In bytes; a thousand times the usual length.
const MAX_SIZE: u64 = 256 * 1024;

pub const PATH: &str = "/etc/resolv.conf";

#[derive(Debug, thiserror::Error)]
#[error("cannot read {}", .path.display())]
pub struct ResolvConfError {
    pub path: PathBuf,
    pub source: io::Error,
}

/// Returns the servers in the order of the file at `path`.
///
/// # Errors
/// When it cannot be read, is not UTF-8 or is too long.
pub fn servers_of(path: &Path) -> Result<Vec<IpAddr>, ResolvConfError> {
    let read = || {
        // Without O_NONBLOCK, open(2) of a FIFO waits for a writer.
        let file = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path)?;
        let mut text = String::new();
        if file.take(MAX_SIZE + 1).read_to_string(&mut text)? as u64 > MAX_SIZE {
            return Err(io::Error::other(format!("it is longer than {MAX_SIZE} bytes")));
        }
        Ok(servers(&text))
    };
    read().map_err(|source| ResolvConfError { path: path.to_owned(), source })
}

/// Returns the servers in the text of such a file; resolv.conf(5). An invalid address is skipped, as resolvers do. An
/// indented line counts: resolvers in Go and `istio-iptables` read it, glibc does not.
fn servers(text: &str) -> Vec<IpAddr> {
    let server = |line: &str| {
        let mut words = line.split_whitespace();
        words.next().filter(|keyword| *keyword == "nameserver")?;
        address(words.next()?)
    };
    text.lines().filter_map(server).collect()
}

/// A link-local server is written with its interface, `fe80::1%eth0`, which is not part of the address in a
/// packet. A query to a mapped IPv4 address is an IPv4 packet.
fn address(word: &str) -> Option<IpAddr> {
    let address = word.split_once('%').map_or(word, |(address, _)| address);
    Some(address.parse::<IpAddr>().ok()?.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_read_as_a_resolver_reads_them() {
        let text = "# nameserver 1.1.1.1\n; nameserver 1.1.1.2\nsearch a.svc.cluster.local\n\
                    nameserver 10.96.0.10\nnameserver\tfd00::a # not a comment to us\noptions ndots:5\n\
                    nameservers 1.1.1.3\nnameserver\nnameserver dns.example\nnameserver fe80::1%eth0\n\
                    nameserver ::ffff:10.96.0.11\r\n \tnameserver 10.96.0.12\n#nameserver 10.96.0.13";
        let found: Vec<String> = servers(text).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["10.96.0.10", "fd00::a", "fe80::1", "10.96.0.11", "10.96.0.12"]);
    }

    #[test]
    fn a_missing_or_endless_file_is_an_error() {
        for path in ["/nonexistent/resolv.conf", "/dev/zero", "/"] {
            let error = servers_of(Path::new(path)).unwrap_err();
            assert!(error.to_string().contains(path), "{error}");
        }
    }
}
