//! Random arguments and variables that `istio-iptables` and `gybe init` both accept, the policy that Gybe reads
//! from them, and the connections of both.

use crate::{Compared, Written, case, compare_all, drawn, network, number};
use gybe_installer::pod::init_args::InitArgs;
use gybe_installer::pod::own_namespace;
use gybe_integration::failure::Failure;
use gybe_integration::flow_check::Rules;
use gybe_integration::programs::{Run, path_of_ours, run};
use gybe_integration::random_policy::{GIDS, INTERFACES, NETWORKS, PORTS, SERVERS, UIDS};
use gybe_integration::topology::Topology;
use gybe_integration::vectors::Location;
use gybe_netfilter::model::policy::{Dns, Families, Mode, Port, RedirectPolicy};
use gybe_test_support::TestDir;
use proptest::collection::vec;
use proptest::prelude::{Just, Strategy};
use proptest::prop_oneof;
use proptest::sample::select;
use proptest::strategy::BoxedStrategy;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

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

/// The pod's addresses in the recorded network, in the kernel's order.
pub(crate) const ADDRESSES: [&str; 6] =
    ["10.244.0.10", "192.168.77.1", "172.30.0.10", "fd00:10::10", "fd00:77::1", "fd00:30::10"];

/// A program that writes a redirection from arguments of `istio-iptables`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Writer {
    IstioLegacy,
    IstioIptablesNft,
    IstioNft,
    GybeNft,
    GybeLegacy,
}

impl Writer {
    pub(crate) const ALL: [Self; 5] =
        [Self::IstioLegacy, Self::IstioIptablesNft, Self::IstioNft, Self::GybeNft, Self::GybeLegacy];

    /// Returns the program and the arguments that choose the backend.
    fn command(self) -> Result<(PathBuf, &'static [&'static str]), Failure> {
        Ok(match self {
            Self::IstioLegacy => (istio("pilot-agent")?, &["--force-iptables-binary", "legacy"]),
            Self::IstioIptablesNft => (istio("pilot-agent")?, &["--force-iptables-binary", "nft"]),
            Self::IstioNft => (istio("pilot-agent")?, &["--native-nftables"]),
            Self::GybeNft => (path_of_ours("gybe")?, &["--native-nftables"]),
            Self::GybeLegacy => (path_of_ours("gybe")?, &["--force-iptables-binary", "legacy"]),
        })
    }
}

/// Returns the path of one of Istio's programs.
pub(crate) fn istio(name: &str) -> Result<PathBuf, Failure> {
    // A test is in target/PROFILE/deps.
    let target = std::env::current_exe()?.ancestors().nth(3).map(|target| target.join("incumbent"));
    let path = target.unwrap_or_default().join(name);
    if path.exists() {
        Ok(path)
    } else {
        Err(Failure::new(format!("there is no {}; run: integration/incumbent/setup.sh", path.display())))
    }
}

/// An argument or variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Setting {
    Flag(&'static str, String),
    Word(String),
    Variable(&'static str, String),
}

/// What an init container gives to `istio-iptables`.
#[derive(Debug, Clone, Default)]
pub(crate) struct ArgumentSet {
    pub(crate) settings: Vec<Setting>,
    pub(crate) resolv_conf: String,
}

impl fmt::Display for ArgumentSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let variables = self.variables().into_iter().map(|(name, value)| format!("{name}='{value}'"));
        let words = self.words().into_iter().map(|word| format!("'{word}'"));
        let words: Vec<String> = variables.chain(words).collect();
        write!(f, "{} with resolv.conf {:?}", words.join(" "), self.resolv_conf)
    }
}

impl ArgumentSet {
    /// Parses `NAME=VALUE … -b 80 …`; `''` is empty.
    pub(crate) fn parse(line: &str, resolv_conf: &str) -> Self {
        let setting = |word: &str| match word.split_once('=') {
            Some((name, value)) if name.chars().all(|c| c.is_ascii_uppercase() || c == '_') => {
                Setting::Variable(Box::leak(name.into()), value.replace("''", ""))
            }
            _ => Setting::Word(word.replace("''", "")),
        };
        Self { settings: line.split_whitespace().map(setting).collect(), resolv_conf: resolv_conf.to_owned() }
    }

    fn variables(&self) -> Vec<(&'static str, &str)> {
        let variables = self.settings.iter().filter_map(|setting| match setting {
            Setting::Variable(name, value) => Some((*name, value.as_str())),
            Setting::Flag(..) | Setting::Word(_) => None,
        });
        variables.collect()
    }

    fn words(&self) -> Vec<String> {
        let words = self.settings.iter().flat_map(|setting| match setting {
            Setting::Flag(flag, value) => vec![(*flag).to_owned(), value.clone()],
            Setting::Word(word) => vec![word.clone()],
            Setting::Variable(..) => Vec::new(),
        });
        words.collect()
    }

    /// Returns the set with the spellings that this program takes: Istio's nft engine takes ranges of ports with a
    /// hyphen only, and no sign.
    pub(crate) fn spelled_for(&self, writer: Writer) -> Self {
        let spelled = |value: &str| match writer {
            // A value with a slash is a network.
            Writer::IstioNft if !value.contains('/') => value.replace(':', "-").replace('+', ""),
            _ => value.to_owned(),
        };
        let settings = self.settings.iter().map(|setting| match setting {
            Setting::Flag(name, value) => Setting::Flag(name, spelled(value)),
            Setting::Variable(name, value) => Setting::Variable(name, spelled(value)),
            Setting::Word(word) => Setting::Word(word.clone()),
        });
        Self { settings: settings.collect(), resolv_conf: self.resolv_conf.clone() }
    }

    /// Returns the policy that Gybe reads for a pod of the recorded network.
    pub(crate) fn policy(&self) -> Result<RedirectPolicy, Failure> {
        let environment = self.variables().into_iter();
        let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let args = InitArgs::read(&self.words(), &environment)?;
        let servers = if args.needs_dns_servers() {
            let directory = TestDir::new("resolv-conf");
            own_namespace::servers_of(&directory.write("resolv.conf", &self.resolv_conf))?
        } else {
            Vec::new()
        };
        let addresses =
            ADDRESSES.iter().map(|address| address.parse()).collect::<Result<Vec<IpAddr>, _>>()?;
        Ok(args.policy(&servers)?.policy(&addresses)?)
    }

    /// Runs the program in the pod of a network, whose `/etc/resolv.conf` it sees.
    pub(crate) fn run(&self, writer: Writer, topology: &Topology) -> Result<Run, Failure> {
        let directory = TestDir::new("resolv-conf");
        let file = directory.write("resolv.conf", &self.resolv_conf).display().to_string();
        let (program, backend) = writer.command()?;
        let mut line = vec!["-i".to_owned(), "PATH=/usr/sbin:/usr/bin:/sbin:/bin".to_owned()];
        // The lock of the pod's namespace, so that networks do not wait for each other.
        line.push("XTABLES_LOCKFILE=/proc/self/ns/net".to_owned());
        line.extend(self.variables().into_iter().map(|(name, value)| format!("{name}={value}")));
        let script = "mount --bind \"$1\" \"$(readlink -f /etc/resolv.conf)\"; shift; exec \"$@\"";
        line.extend(
            ["unshare", "--mount", "--propagation", "private", "sh", "-euc", script, "sh"].map(str::to_owned),
        );
        line.extend([file, program.display().to_string(), "istio-iptables".to_owned()]);
        line.extend(backend.iter().map(|word| (*word).to_owned()));
        line.extend(self.words());
        let line: Vec<&str> = line.iter().map(String::as_str).collect();
        topology.at(Location::Pod).run(|| run("env", &line, ""))?
    }
}

/// No process listens on it.
const UNUSED_PORT: Port = Port::new(5999).unwrap();

/// Writes the rules of these arguments by each program, each in a network of its own.
pub(crate) fn write(set: &ArgumentSet, number: u64, writers: &[Writer]) -> Result<Vec<Written>, Failure> {
    let case = case(set.policy()?, number)?;
    let comparable = writers.iter().filter(|writer| is_comparable(**writer, &case.policy));
    let written = comparable.map(|writer| {
        let topology = network(&case.policy)?;
        let run = set.spelled_for(*writer).run(*writer, &topology)?;
        let v4_only = *writer == Writer::IstioNft && case.policy.families == Families::V4Only;
        Ok(Written {
            what: format!("set {number}, {writer:?}: {set}\n  {:?}", case.policy),
            case: case.clone(),
            topology,
            failure: failure(&run),
            rules: Rules::Present,
            compared: if v4_only { Compared::V4 } else { Compared::BothFamilies },
        })
    });
    written.collect()
}

/// Returns the exit code and the error messages of a program that failed.
fn failure(run: &Run) -> Option<String> {
    let lines = run.out.lines().chain(run.err.lines());
    let errors: Vec<&str> = lines.filter(|line| line.contains("rror")).collect();
    (run.code != Some(0)).then(|| format!("exit code {:?}: {}", run.code, errors.join("; ")))
}

/// Reports whether the program can be compared. Istio's nft engine fails when the DNS servers are of IPv6 only and IPv6
/// is off, and its TPROXY rules let connections pass when no process listens on the inbound port (docs/DIFFERENCES.md).
fn is_comparable(writer: Writer, policy: &RedirectPolicy) -> bool {
    let v6_servers = matches!(&policy.dns, Dns::Servers(servers) if servers.v4().is_empty());
    let fails = v6_servers && policy.families == Families::V4Only;
    let passes = policy.mode != Mode::Redirect && policy.inbound_port == UNUSED_PORT;
    writer != Writer::IstioNft || !(fails || passes)
}

#[test]
fn random_arguments_capture_the_same_connections() -> Result<(), Failure> {
    let (first, sets) = (number("GYBE_SEED", 1), number("GYBE_SETS", 40));
    println!("argument sets from GYBE_SEED={first}, GYBE_SETS={sets}");
    compare_all("argument sets, each with 5 programs", first..first + sets, |number| {
        write(&drawn(number, &argument_sets()), number, &Writer::ALL)
    })
}
