//! Random arguments and variables that `istio-iptables` and `gybe init` both accept.

use crate::argument_set::{ArgumentSet, Setting};
use gybe_integration::random_policy::{GIDS, INTERFACES, NETWORKS, PORTS, SERVERS, UIDS};
use proptest::collection::vec;
use proptest::prelude::{Just, Strategy};
use proptest::prop_oneof;
use proptest::sample::select;
use proptest::strategy::BoxedStrategy;

type Settings = BoxedStrategy<Vec<Setting>>;

pub(crate) fn argument_sets() -> impl Strategy<Value = ArgumentSet> {
    let settings: Vec<Settings> = vec![
        usually("-b", "ISTIO_INBOUND_PORTS", star_or(ports(4))),
        usually("-i", "ISTIO_SERVICE_CIDR", star_or(networks(4))),
        given("-d", "ISTIO_LOCAL_EXCLUDE_PORTS", ports(4)),
        given("-x", "ISTIO_SERVICE_EXCLUDE_CIDR", networks(3)),
        given("-q", "ISTIO_OUTBOUND_PORTS", ports(2)),
        // iptables parses the ports of UDP without a base.
        given(
            "-o",
            "ISTIO_LOCAL_OUTBOUND_PORTS_EXCLUDE",
            ports(3).prop_map(|ports| ports.replace("0x1f90", "8080")).boxed(),
        ),
        given("-c", "ISTIO_EXCLUDE_INTERFACES", some_of(&INTERFACES, 2)),
        given("-k", "KUBE_VIRT_INTERFACES", some_of(&INTERFACES, 2)),
        given("-u", "PROXY_UID", ids(&UIDS)),
        given("-g", "PROXY_GID", ids(&GIDS)),
        given("-m", "ISTIO_INBOUND_INTERCEPTION_MODE", one_of(&["REDIRECT", "redirect", "TPROXY", "TPROXY"])),
        given("-t", "ISTIO_INBOUND_TPROXY_MARK", one_of(&["7", "1337"])),
        given("-r", "ISTIO_INBOUND_TPROXY_ROUTE_TABLE", one_of(&["200", "133"])),
        given("-p", "", one_of(&["15001", "0x3a99", "4000", "5999"])),
        given("-z", "INBOUND_CAPTURE_PORT", one_of(&["15006", "15006", "15001", "5999"])),
        given("-e", "INBOUND_TUNNEL_PORT", one_of(&["15008", "4000", "53", "8080"])),
        yes_or_no("--redirect-dns", "REDIRECT_DNS", "ISTIO_META_DNS_CAPTURE"),
        yes_or_no("--drop-invalid", "DROP_INVALID", "INVALID_DROP"),
        yes_or_no("--dual-stack", "DUAL_STACK", "ISTIO_DUAL_STACK"),
        yes_or_no("--capture-all-dns", "CAPTURE_ALL_DNS", ""),
        given("", "ISTIO_OUTBOUND_OWNER_GROUPS", star_or(some_of(&GIDS.map(text), 3))),
        given("", "ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE", some_of(&GIDS.map(text), 2)),
        given("", "ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR", one_of(&["127.0.0.1/8", "127.1.0.0/16"])),
        select(vec!["word", "--"]).prop_map(|word| vec![Setting::Word(word.to_owned())]).boxed(),
    ];
    (settings, resolv_confs()).prop_map(|(settings, resolv_conf)| {
        // `--` ends the arguments, so it is the last one.
        ArgumentSet { settings: settings.concat(), resolv_conf }
    })
}

/// An argument, its variable, both or neither. Either name may be empty.
fn given(flag: &'static str, variable: &'static str, value: BoxedStrategy<String>) -> Settings {
    let of = move |given: Vec<Setting>| -> Vec<Setting> {
        let exists = |setting: &Setting| !matches!(setting, Setting::Flag("", _) | Setting::Variable("", _));
        given.into_iter().filter(exists).collect()
    };
    (value.clone(), value, select(vec![0, 0, 0, 1, 1, 2, 3]))
        .prop_map(move |(one, other, which)| {
            of(match which {
                0 => Vec::new(),
                1 => vec![Setting::Flag(flag, one)],
                2 => vec![Setting::Variable(variable, one)],
                _ => vec![Setting::Variable(variable, one), Setting::Flag(flag, other)],
            })
        })
        .boxed()
}

/// As [`given`], but absent in one of eight sets.
fn usually(flag: &'static str, variable: &'static str, value: BoxedStrategy<String>) -> Settings {
    let flag_value = value.clone().prop_map(move |value| vec![Setting::Flag(flag, value)]);
    prop_oneof![3 => flag_value, 1 => given(flag, variable, value)].boxed()
}

/// Either variable with any value, the flag with a valid one.
fn yes_or_no(flag: &'static str, own: &'static str, additional: &'static str) -> Settings {
    let value = || one_of(&["true", "false", "1", "0", "", "yes", "T"]);
    let words = select(vec!["", "", "", "", "=true", "=false", "bare"]).prop_map(move |form| match form {
        "" => Vec::new(),
        "bare" => vec![Setting::Word(flag.to_owned())],
        value => vec![Setting::Word(format!("{flag}{value}"))],
    });
    (given("", own, value()), given("", additional, value()), words)
        .prop_map(|(own, additional, words)| [own, additional, words].concat())
        .boxed()
}

fn one_of(values: &'static [&'static str]) -> BoxedStrategy<String> {
    select(values.to_vec()).prop_map(str::to_owned).boxed()
}

fn star_or(list: BoxedStrategy<String>) -> BoxedStrategy<String> {
    prop_oneof![Just("*".to_owned()), list].boxed()
}

fn some_of(values: &[impl ToString], most: usize) -> BoxedStrategy<String> {
    let values: Vec<String> = values.iter().map(ToString::to_string).collect();
    vec(select(values), 0..=most).prop_map(|items| items.join(",")).boxed()
}

/// Always with the proxy of the recorded network.
fn ids(ids: &[u32]) -> BoxedStrategy<String> {
    (some_of(ids, 2), select(vec!["1337", "0x539", "+1337"]), select(vec![true, false]))
        .prop_map(
            |(others, proxy, first)| {
                if first { format!("{proxy},{others}") } else { format!("{others},{proxy}") }
            },
        )
        .boxed()
}

/// Ranges as iptables writes them.
fn ports(most: usize) -> BoxedStrategy<String> {
    let ports: Vec<String> = PORTS.iter().map(|port| port.replace('-', ":")).collect();
    some_of(&[ports, vec!["+8080".to_owned(), "0x1f90".to_owned()]].concat(), most)
}

fn networks(most: usize) -> BoxedStrategy<String> {
    some_of(&NETWORKS, most)
}

fn text(id: u32) -> String {
    id.to_string()
}

fn resolv_confs() -> impl Strategy<Value = String> {
    let line = (select(SERVERS.to_vec()), select(vec!["", "", "  ", "\t"])).prop_map(|(server, indent)| {
        let address = server.split('/').next().unwrap_or_default();
        format!("{indent}nameserver {address}\n")
    });
    vec(line, 0..=3).prop_map(|lines| format!("search a.svc\n{}", lines.concat()))
}
