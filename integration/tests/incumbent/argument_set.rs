//! Arguments and variables of `istio-iptables`, the policy that Gybe reads from them, and the programs that take them.

use gybe_installer::pod::init_args::InitArgs;
use gybe_installer::pod::resolv_conf;
use gybe_integration::failure::Failure;
use gybe_integration::programs::{Run, path_of_ours, run};
use gybe_integration::topology::Topology;
use gybe_integration::vectors::Location;
use gybe_netfilter::model::policy::RedirectPolicy;
use gybe_test_support::TestDir;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

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
            resolv_conf::servers_of(&directory.write("resolv.conf", &self.resolv_conf))?
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
        Ok(topology.at(Location::Pod).run(|| run("env", &line, ""))??)
    }
}
