//! Legacy tables read with getsockopt(2) equal the output of `iptables-legacy-save`.

use super::*;
use gybe_integration::namespace::unshare_mounts;
use gybe_netfilter::apply::apply;
use gybe_netfilter::model::Hint;
use gybe_netfilter::model::ruleset::Family;
use gybe_netfilter::nft::Nft;
use gybe_netfilter::xt::legacy::{LegacyError, table_names, tables as legacy_tables};
use nix::mount::{MsFlags, mount};

/// Rules of `iptables`, each form at least once.
const V4: [&str; 38] = [
    "-t nat -N DOCKER",
    "-t nat -N ISTIO_OUTPUT",
    "-t nat -A OUTPUT ! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j DOCKER",
    "-t nat -A OUTPUT -p tcp -m comment --comment 'two words, \"quoted\"' -j ISTIO_OUTPUT",
    "-t nat -A OUTPUT -d 10.0.0.0/255.0.255.0 -g ISTIO_OUTPUT",
    "-t nat -A ISTIO_OUTPUT -p tcp -j REDIRECT --to-ports 15001",
    "-t nat -A ISTIO_OUTPUT -p tcp -j REDIRECT --to-ports 15001-15010 --random",
    "-t nat -A ISTIO_OUTPUT -m owner --uid-owner 1337 -j RETURN",
    "-t nat -A ISTIO_OUTPUT -m owner ! --gid-owner 10-20 -j RETURN",
    "-t nat -A ISTIO_OUTPUT -m owner --socket-exists -j RETURN",
    "-t nat -A ISTIO_OUTPUT ! -o lo -m owner --uid-owner 7",
    "-t nat -A PREROUTING -i eth+ -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.0.0.1:8080",
    "-t nat -A PREROUTING -p udp -m udp --sport 1:9 -j DNAT --to-destination 10.0.0.1-10.0.0.9:80-90 --persistent",
    "-t nat -A POSTROUTING -s 10.0.0.0/8 -j MASQUERADE",
    "-t nat -A POSTROUTING -p tcp -j MASQUERADE --to-ports 100-200",
    "-t nat -A POSTROUTING -s 192.168.1.1 -j SNAT --to-source 1.2.3.4",
    "-t mangle -A PREROUTING -p tcp -j TPROXY --on-port 15006 --on-ip 0.0.0.0 --tproxy-mark 0x539/0xffffffff",
    "-t mangle -A PREROUTING -m socket --transparent --nowildcard -j MARK --set-xmark 0x539/0xffffffff",
    "-t mangle -A PREROUTING -m mark ! --mark 0x1/0xff -j MARK --set-xmark 0x2/0xff",
    "-t mangle -A OUTPUT -m connmark --mark 0x539 -j CONNMARK --restore-mark --nfmask 0xffffffff --ctmask 0xffffffff",
    "-t mangle -A OUTPUT -j CONNMARK --save-mark --nfmask 0xff --ctmask 0xffff",
    "-t mangle -A OUTPUT -j CONNMARK --set-xmark 0x1/0x1",
    "-t raw -A OUTPUT -p udp -m udp --dport 53 -j CT --zone 1",
    "-t raw -A OUTPUT -j CT --notrack",
    "-t raw -A OUTPUT -j NOTRACK",
    "-P FORWARD DROP",
    "-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
    "-A INPUT -m conntrack ! --ctstate INVALID --ctproto 6 --ctorigsrc 10.0.0.0/8 --ctorigdstport 80 -j ACCEPT",
    "-A INPUT -m state --state NEW -j ACCEPT",
    "-A INPUT -p tcp -m tcp ! --sport 22 --dport 1:1024 --tcp-flags FIN,SYN,RST,ACK SYN -j DROP",
    "-A INPUT -p tcp -m multiport --dports 80,443,8000:8100 -j ACCEPT",
    "-A INPUT -p udp -m multiport ! --ports 53 -j REJECT --reject-with icmp-admin-prohibited",
    "-A INPUT -p icmp -m icmp --icmp-type 8 -j ACCEPT",
    "-A INPUT ! -p esp -m iprange --src-range 10.0.0.1-10.0.0.9 ! --dst-range 10.1.0.0-10.1.0.9 -f -j ACCEPT",
    "-A INPUT -m limit --limit 3/min --limit-burst 9 -j LOG --log-prefix \"seen: \" --log-level 6 --log-uid",
    "-A INPUT -m pkttype ! --pkt-type broadcast -j NFLOG --nflog-prefix seen --nflog-group 7",
    "-A INPUT -m limit --limit 5/sec -j NFQUEUE --queue-num 3 --queue-bypass",
    "-t security -A OUTPUT -p sctp -j ACCEPT",
];

/// Rules of `ip6tables` that have a form of their own.
const V6: [&str; 14] = [
    "-t nat -N ISTIO_OUTPUT",
    "-t nat -A OUTPUT ! -d ::1 -p tcp -j ISTIO_OUTPUT",
    "-t nat -A ISTIO_OUTPUT -p tcp -j REDIRECT --to-ports 15001",
    "-t nat -A ISTIO_OUTPUT -s fd00::/8 -o lo -m owner --gid-owner 1337 -j RETURN",
    "-t nat -A PREROUTING -p tcp -j DNAT --to-destination [fd00::1]:8080",
    "-t nat -A PREROUTING -j DNAT --to-destination fd00::1-fd00::9",
    "-t nat -A POSTROUTING -j MASQUERADE",
    "-t nat -A POSTROUTING -j SNAT --to-source fd00::5",
    "-t mangle -A PREROUTING -p tcp -j TPROXY --on-port 15006 --on-ip :: --tproxy-mark 0x539/0xffffffff",
    "-t raw -A PREROUTING -j CT --zone 2",
    "-A INPUT -p ipv6-icmp -m icmp6 --icmpv6-type 1/4 -j ACCEPT",
    "-A INPUT -m conntrack --ctrepldst fd00::/16 -j ACCEPT",
    "-A INPUT -p tcp -m iprange --src-range fd00::-fd01:: -j REJECT --reject-with tcp-reset",
    "-A INPUT -s fd00::1/ffff::ffff -j ACCEPT",
];

#[test]
fn tables_are_read_as_iptables_legacy_save_prints_them() {
    for (family, program, rules) in
        [(Family::V4, "iptables-legacy", &V4[..]), (Family::V6, "ip6tables-legacy", &V6[..])]
    {
        in_new_namespace(|| {
            for rule in rules {
                sh(&format!("{program} {rule}"));
            }
            let printed = sh(&format!("{program}-save -c | sed '/^#/d'"));
            let read: String = legacy_tables(family).unwrap().iter().map(ToString::to_string).collect();
            assert!(printed.lines().count() > rules.len(), "{printed}");
            let differing: Vec<_> =
                printed.lines().zip(read.lines()).filter(|(theirs, ours)| theirs != ours).collect();
            assert!(differing.is_empty(), "{differing:#?}");
            assert_eq!(printed, read);
        });
    }
}

#[test]
fn every_rule_of_gybe_is_read_as_iptables_legacy_save_prints_it() {
    let backend = patient(Engine::Legacy);
    in_new_namespace(|| {
        for (name, rules) in every_ruleset() {
            apply(&backend, &rules).unwrap();
            for (family, program) in [(Family::V4, "iptables"), (Family::V6, "ip6tables")] {
                let printed = sh(&format!("{program}-legacy-save -c | sed '/^#/d'"));
                let read: String = legacy_tables(family).unwrap().iter().map(ToString::to_string).collect();
                assert_eq!(printed, read, "{name}");
            }
        }
    });
}

/// iptables creates a table when it reads it; Gybe does not.
#[test]
fn reading_creates_no_table() {
    in_new_namespace(|| {
        let listed =
            || sh("cat /proc/thread-self/net/ip_tables_names /proc/thread-self/net/ip6_tables_names");
        let read_all = || {
            for family in [Family::V4, Family::V6] {
                assert!(legacy_tables(family).is_ok());
            }
            assert!(patient(Engine::Legacy).inspect().unwrap().is_empty());
            assert!(patient(Engine::NfTables).inspect().unwrap().is_empty());
            assert!(gybe_netfilter::apply::presence::Presence::look().unwrap().ours.is_empty());
        };
        assert_eq!(listed(), "");
        read_all();
        assert_eq!(listed(), "");
        sh("iptables-legacy -t raw -A OUTPUT -j NOTRACK");
        read_all();
        assert_eq!(listed(), "raw\n");
        assert_eq!(table_names(Family::V4).unwrap(), ["raw"]);
        assert_eq!(legacy_tables(Family::V4).unwrap()[0].chains.len(), 2);
    });
}

#[test]
fn a_redirect_in_legacy_tables_is_refused_where_their_programs_are_missing() {
    in_new_namespace(|| {
        sh("iptables-legacy -t nat -N ISTIO_OUTPUT; iptables-legacy -t nat -A OUTPUT -j ISTIO_OUTPUT");
        let program = std::fs::canonicalize("/usr/sbin/iptables-legacy-save").unwrap();
        unshare_mounts().unwrap();
        mount(Some("/dev/null"), &program, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
        assert!(Iptables::find(Engine::Legacy).is_err());
        for backend in [&Nft as &dyn Backend, &patient(Engine::NfTables)] {
            let error = apply(backend, &ruleset("inject-default-dual")).unwrap_err().to_string();
            assert!(error.contains("ISTIO_OUTPUT in table nat (IPv4)"), "{error}");
        }
    });
}

#[test]
fn a_table_over_the_size_limit_is_refused_by_name() {
    in_new_namespace(|| {
        sh(
            "(echo '*nat'; i=0; while [ $i -lt 60000 ]; do echo '-A OUTPUT -p tcp -j ACCEPT'; i=$((i+1)); done; \
            echo COMMIT) | iptables-legacy-restore",
        );
        let error = legacy_tables(Family::V4).err().unwrap();
        assert!(matches!(&error, LegacyError::TooLarge { table, .. } if table == "nat"), "{error}");
        assert!(error.hint().is_some());
    });
}

#[test]
fn a_table_that_changes_all_the_time_is_read_consistently() {
    in_new_namespace(|| {
        sh("iptables-legacy -t nat -N BUSY; iptables-legacy -t nat -A OUTPUT -j BUSY");
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for _ in 0..40 {
                    sh("printf '*nat\\n-A BUSY -p tcp -j ACCEPT\\n-A BUSY -p udp -j ACCEPT\\nCOMMIT\\n' | \
                        iptables-legacy-restore --noflush; iptables-legacy -t nat -F BUSY");
                }
            });
            while !writer.is_finished() {
                let tables = legacy_tables(Family::V4).unwrap();
                let busy = tables[0].chains.iter().find(|chain| chain.name == "BUSY").unwrap();
                assert!(matches!(busy.rules.len(), 0 | 2), "{busy:?}");
            }
        });
    });
}
