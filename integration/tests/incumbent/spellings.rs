//! The rows of docs/DIFFERENCES.md, section 4, "Values of arguments and variables": each with Istio's program and with
//! Gybe's.

use crate::arguments::write;
use crate::arguments::{ArgumentSet, Writer};
use crate::{Written, compare_all, network};
use gybe_integration::failure::Failure;
use gybe_integration::programs::run;
use gybe_integration::vectors::Location;
use gybe_netfilter::model::policy::Mode;

const IPTABLES: [Writer; 4] =
    [Writer::IstioLegacy, Writer::IstioIptablesNft, Writer::GybeNft, Writer::GybeLegacy];
const SERVER: &str = "nameserver 10.96.0.10\n";

/// Both programs capture the same connections. The last member: also with Istio's nft engine.
const EQUAL: [(&str, &str, bool); 24] = [
    ("REDIRECT_DNS=true ISTIO_META_DNS_CAPTURE=false -i * -b *", SERVER, true),
    ("REDIRECT_DNS=false ISTIO_META_DNS_CAPTURE=true -i * -b *", SERVER, true),
    ("REDIRECT_DNS=true ISTIO_META_DNS_CAPTURE=false CAPTURE_ALL_DNS=true -i * -b *", SERVER, true),
    ("REDIRECT_DNS=false ISTIO_META_DNS_CAPTURE=true CAPTURE_ALL_DNS=true -i * -b *", SERVER, true),
    ("DUAL_STACK=true ISTIO_DUAL_STACK=false -i * -b *", "", true),
    ("DUAL_STACK=false ISTIO_DUAL_STACK=true -i * -b *", "", true),
    ("DROP_INVALID=true INVALID_DROP=false -i * -b *", "", true),
    ("DROP_INVALID=false INVALID_DROP=true -i * -b *", "", true),
    ("REDIRECT_DNS=true ISTIO_META_DNS_CAPTURE='' CAPTURE_ALL_DNS=true -i * -b *", SERVER, true),
    ("REDIRECT_DNS=yes CAPTURE_ALL_DNS=true -i * -b *", SERVER, true),
    ("ISTIO_META_DNS_CAPTURE='' -i * -b *", SERVER, true),
    ("ISTIO_DUAL_STACK=on INVALID_DROP=y -i * -b *", "", true),
    ("-b 8080 -i * word --drop-invalid false", "", true),
    ("-b 8080 -i * -- -b 4000", "", true),
    ("-m redirect -b 8080 -i *", "", true),
    ("-b 4000:5000 -i *", "", false),
    ("-b :5000 -i *", "", false),
    ("-b * -d 4000: -i *", "", false),
    ("-b +8080 -o +9000 -i *", "", false),
    ("-b 0x1f90 -q 0x2328 -p 0x3a99 -u 0x539 -i *", "", true),
    ("-b * -i * --redirect-dns", "  nameserver 10.96.0.10\n\tnameserver 8.8.8.8\n", true),
    ("-b * -i * --redirect-dns", "nameserver fd00:96::10\n", true),
    ("-b * -i * --redirect-dns --dual-stack", "nameserver 10.96.0.10\nnameserver fd00:96::10\n", true),
    ("-b * -i *", "", true),
];

#[test]
fn values_that_are_equal_capture_the_same_connections() -> Result<(), Failure> {
    compare_all("rows", 0..EQUAL.len() as u64, |number| {
        let (line, resolv_conf, with_nft) = EQUAL[usize::try_from(number)?];
        let writers = if with_nft { Writer::ALL.as_slice() } else { &IPTABLES };
        write(&ArgumentSet::parse(line, resolv_conf), number, writers)
    })
}

/// What Istio's program does with arguments that Gybe refuses.
#[derive(Debug, Clone, Copy)]
enum Istio {
    /// Its rules contain this text, as `iptables-legacy-save` prints them.
    Writes(&'static str),
    Fails,
}

const REFUSED: [(&str, &str, Istio); 20] = [
    ("-i * -b 05000", "leading zero", Istio::Writes("--dport 2560 ")),
    ("-i * -b 1 -u 01337", "leading zero", Istio::Writes("--uid-owner 735 ")),
    ("-i * -b http", "not a port", Istio::Writes("--dport 80 ")),
    ("-i * -b 1 -u 1000-2000", "ranges are not supported", Istio::Writes("--uid-owner 1000-2000 ")),
    ("-i * -b 1 -c eth+", "--istio-exclude-interfaces", Istio::Writes("-i eth+ ")),
    ("-i * -b 1 -c net1@if3", "--istio-exclude-interfaces", Istio::Writes("-i net1@if3 ")),
    ("-i * -b 1 -c !eth1", "--istio-exclude-interfaces", Istio::Writes("-i !eth1 ")),
    ("-i * -b 1 -c net1/", "--istio-exclude-interfaces", Istio::Writes("-i net1/ ")),
    ("-i * -b 1 -p 0", "not a port to listen on", Istio::Writes("--to-ports 0")),
    ("-i * -b 1 -z 0", "not a port to listen on", Istio::Writes("--to-ports 0")),
    ("-i * -b 80 -m NONE", "neither REDIRECT nor TPROXY", Istio::Writes("--dport 80 -j ISTIO_IN_REDIRECT")),
    ("-i * -b 80 -m tproxy", "neither REDIRECT nor TPROXY", Istio::Writes("--dport 80 -j ISTIO_IN_REDIRECT")),
    ("-i * -b 80 -m TPROXY -t 0", "mark of every packet", Istio::Writes("--mark 0x0 ")),
    ("-i * -b 80 -m TPROXY -t 1338", "already marks packets", Istio::Writes("--mark 0x53a ")),
    ("-i * -b 80 -m TPROXY -r 254", "the kernel's own", Istio::Writes("TPROXY")),
    ("-i * -b 80 -m TPROXY -r 255", "the kernel's own", Istio::Writes("TPROXY")),
    ("-i * -b 5000:4000", "is reversed", Istio::Fails),
    ("-i * -b 8O80", "not a port", Istio::Fails),
    ("-i * -b 80 --redirect-dns=yes", "neither true nor false", Istio::Fails),
    ("-i * -b 80 --dry-run=", "neither true nor false", Istio::Fails),
];

#[test]
fn values_that_gybe_refuses_are_named_and_istio_does_what_the_page_says() -> Result<(), Failure> {
    let policy = ArgumentSet::parse("-i * -b *", "").policy()?;
    assert_eq!(policy.mode, Mode::Redirect);
    for (line, reason, istio) in REFUSED {
        let set = ArgumentSet::parse(line, "");
        let topology = network(&policy)?;
        let ours = set.run(Writer::GybeNft, &topology)?;
        assert_eq!(ours.code, Some(2), "{line}: {ours:?}");
        assert!(ours.err.contains(reason), "{line}: {}", ours.err);
        let save = || topology.at(Location::Pod).run(|| run("iptables-legacy-save", &[], ""));
        assert!(!save()??.out.contains("ISTIO_"), "{line}: gybe wrote rules");

        let theirs = set.run(Writer::IstioLegacy, &topology)?;
        let written = save()??.out;
        match istio {
            Istio::Writes(text) => {
                assert_eq!(theirs.code, Some(0), "{line}: {}", theirs.err);
                assert!(written.contains(text), "{line}: {written}");
            }
            Istio::Fails => assert_ne!(theirs.code, Some(0), "{line}: {written}"),
        }
    }
    Ok(())
}

/// A query to a mapped address is an IPv4 packet. Istio's rule is for IPv6, so that no query meets it.
#[test]
fn a_mapped_name_server_is_captured_by_gybe_only() -> Result<(), Failure> {
    let set = ArgumentSet::parse("-i * -b * --redirect-dns", "nameserver ::ffff:10.96.0.10\n");
    let found = |writers: &[Writer]| {
        let written = write(&set, 1, writers)?;
        let found = written.iter().map(Written::differences).collect::<Result<Vec<_>, Failure>>()?;
        Ok::<_, Failure>(found.concat())
    };
    assert_eq!(found(&[Writer::GybeNft, Writer::GybeLegacy])?, Vec::<String>::new());
    let found = found(&[Writer::IstioLegacy, Writer::IstioIptablesNft])?;
    assert!(!found.is_empty() && found.iter().all(|one| one.contains("10.96.0.10:53")), "{found:#?}");
    Ok(())
}
