//! The flags of `istio-iptables`, each with its environment variables and its key in a policy file; and conversions of
//! the spellings that only `istio-iptables` accepts, where iptables parses the values. Other text is unchanged: the
//! policy file's parser reports it if it is invalid.

use std::borrow::Cow;

/// A boolean flag that changes what the program does, not the policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RunOption {
    /// Change nothing; print the rules.
    DryRun,
    /// Do not write rules (the CNI plugin has written them).
    SkipRuleApply,
    /// Test whether a connection reaches the proxy (the init container `istio-validation`).
    RunValidation,
    /// Replace rules that differ instead of failing.
    Reconcile,
    /// Remove the rules and write none.
    CleanupOnly,
    /// Write rules whatever rules are there. Gybe does so anyway; here the flag overrides the check that this is a
    /// pod's namespace.
    ForceApply,
    /// Use nftables.
    NativeNftables,
}

/// A flag with a value that is not part of the policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Setting {
    /// The port of the test connection of a validation.
    ProbePort,
    /// The timeout of a validation.
    ProbeTimeout,
    /// The iptables programs that Istio uses.
    IptablesBinary,
    /// The network namespace to write into.
    NetworkNamespace,
    /// The user whose uid is the proxy's if no argument sets `proxy_uids`.
    ProxyUser,
    /// The file that a dry run also writes the rules to.
    DryRunFile,
}

/// What a flag's value means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FlagMeaning {
    /// The mode, of this policy key.
    Mode(&'static str),
    /// The value of this policy key.
    Value(&'static str),
    /// A number, of this policy key.
    Number(&'static str),
    /// A comma-separated list, of this policy key.
    List(&'static str),
    /// A comma-separated list of numbers, of this policy key.
    Numbers(&'static str),
    /// A comma-separated list of ports and ranges, of this policy key.
    Ports(&'static str),
    /// True or false, of this policy key.
    Bool(&'static str),
    /// A [`RunOption`]; set unless the value is false.
    RunOption(RunOption),
    /// A [`Setting`]; its text is stored, and parsed where it is used.
    Setting(Setting),
    /// Takes a value; ignored without a note, because no operator depends on it.
    SilentlyIgnored,
    /// Needs no value; ignored without a note, because no operator depends on it.
    SilentlyIgnoredBare,
    /// Takes a value; ignored with a note.
    IgnoredWithNote,
    /// Needs no value; ignored with a note.
    IgnoredWithNoteBare,
}

impl FlagMeaning {
    /// Returns the policy key that it sets.
    pub(super) fn key(self) -> Option<&'static str> {
        match self {
            Self::Mode(key)
            | Self::Value(key)
            | Self::Number(key)
            | Self::List(key)
            | Self::Numbers(key)
            | Self::Ports(key)
            | Self::Bool(key) => Some(key),
            Self::RunOption(_)
            | Self::Setting(_)
            | Self::SilentlyIgnored
            | Self::SilentlyIgnoredBare
            | Self::IgnoredWithNote
            | Self::IgnoredWithNoteBare => None,
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Flag {
    pub(super) short: Option<char>,
    pub(super) long: &'static str,
    pub(super) meaning: FlagMeaning,
    /// A second variable that sets it, and overrides the variable named after the flag.
    second_variable: Option<&'static str>,
}

impl Flag {
    /// Every other log flag of Istio's library counts as `log_output_level`: none changes a rule.
    pub(super) fn is_called(&self, name: &str) -> bool {
        self.long == name || (self.long == "log_output_level" && name.starts_with("log_"))
    }

    /// Returns the flag's line of the help text.
    pub(super) fn help(&self) -> String {
        let short = self.short.map_or("    ".to_owned(), |letter| format!("-{letter}, "));
        let value = if self.value_when_bare().is_some() { "" } else { " VALUE" };
        let name = format!("--{}{value}", self.long);
        let variables: Vec<String> = self.variables().collect();
        format!("  {short}{name:<43} {}", variables.join(", "))
    }

    /// Returns the flag's value if it stands without one; none if the next argument is its value.
    pub(super) fn value_when_bare(&self) -> Option<&'static str> {
        match self.meaning {
            FlagMeaning::Bool(_)
            | FlagMeaning::RunOption(_)
            | FlagMeaning::SilentlyIgnoredBare
            | FlagMeaning::IgnoredWithNoteBare => Some("true"),
            FlagMeaning::Mode(_)
            | FlagMeaning::Value(_)
            | FlagMeaning::Number(_)
            | FlagMeaning::List(_)
            | FlagMeaning::Numbers(_)
            | FlagMeaning::Ports(_)
            | FlagMeaning::Setting(_)
            | FlagMeaning::SilentlyIgnored
            | FlagMeaning::IgnoredWithNote => None,
        }
    }

    /// Returns the environment variables that set it; the second overrides the first.
    pub(super) fn variables(&self) -> impl Iterator<Item = String> {
        let named_after_flag = self.long.to_uppercase().replace('-', "_");
        // Istio does not read ENVOY_PORT, which other programs use.
        let first = (self.long != "envoy-port").then_some(named_after_flag);
        first.into_iter().chain(self.second_variable.map(str::to_owned))
    }
}

const fn flag(short: Option<char>, long: &'static str, meaning: FlagMeaning) -> Flag {
    Flag { short, long, meaning, second_variable: None }
}

const fn with_variable(variable: &'static str, flag: Flag) -> Flag {
    Flag { second_variable: Some(variable), ..flag }
}

pub(super) static FLAGS: [Flag; 38] = [
    flag(Some('p'), "envoy-port", FlagMeaning::Number("proxy_port")),
    flag(Some('z'), "inbound-capture-port", FlagMeaning::Number("inbound_capture_port")),
    flag(Some('e'), "inbound-tunnel-port", FlagMeaning::Number("inbound_tunnel_port")),
    flag(Some('u'), "proxy-uid", FlagMeaning::Numbers("proxy_uids")),
    flag(Some('g'), "proxy-gid", FlagMeaning::Numbers("proxy_gids")),
    flag(Some('m'), "istio-inbound-interception-mode", FlagMeaning::Mode("mode")),
    flag(Some('b'), "istio-inbound-ports", FlagMeaning::Ports("inbound_ports_include")),
    flag(Some('d'), "istio-local-exclude-ports", FlagMeaning::Ports("inbound_ports_exclude")),
    flag(Some('c'), "istio-exclude-interfaces", FlagMeaning::List("exclude_interfaces")),
    flag(Some('i'), "istio-service-cidr", FlagMeaning::List("outbound_cidrs_include")),
    flag(Some('x'), "istio-service-exclude-cidr", FlagMeaning::List("outbound_cidrs_exclude")),
    flag(Some('q'), "istio-outbound-ports", FlagMeaning::Ports("outbound_ports_include")),
    flag(Some('o'), "istio-local-outbound-ports-exclude", FlagMeaning::Ports("outbound_ports_exclude")),
    flag(Some('k'), "kube-virt-interfaces", FlagMeaning::List("reroute_virtual_interfaces")),
    flag(Some('t'), "istio-inbound-tproxy-mark", FlagMeaning::Number("tproxy_mark")),
    flag(Some('r'), "istio-inbound-tproxy-route-table", FlagMeaning::Number("tproxy_route_table")),
    with_variable("ISTIO_META_DNS_CAPTURE", flag(None, "redirect-dns", FlagMeaning::Bool("redirect_dns"))),
    flag(None, "capture-all-dns", FlagMeaning::Bool("capture_all_dns")),
    with_variable("INVALID_DROP", flag(None, "drop-invalid", FlagMeaning::Bool("drop_invalid"))),
    with_variable("ISTIO_DUAL_STACK", flag(None, "dual-stack", FlagMeaning::Bool("dual_stack"))),
    flag(Some('n'), "dry-run", FlagMeaning::RunOption(RunOption::DryRun)),
    flag(None, "skip-rule-apply", FlagMeaning::RunOption(RunOption::SkipRuleApply)),
    flag(None, "run-validation", FlagMeaning::RunOption(RunOption::RunValidation)),
    flag(None, "reconcile", FlagMeaning::RunOption(RunOption::Reconcile)),
    flag(None, "cleanup-only", FlagMeaning::RunOption(RunOption::CleanupOnly)),
    flag(None, "force-apply", FlagMeaning::RunOption(RunOption::ForceApply)),
    flag(None, "native-nftables", FlagMeaning::RunOption(RunOption::NativeNftables)),
    flag(None, "network-namespace", FlagMeaning::Setting(Setting::NetworkNamespace)),
    flag(None, "iptables-probe-port", FlagMeaning::Setting(Setting::ProbePort)),
    flag(None, "probe-timeout", FlagMeaning::Setting(Setting::ProbeTimeout)),
    flag(None, "force-iptables-binary", FlagMeaning::Setting(Setting::IptablesBinary)),
    flag(Some('f'), "restore-format", FlagMeaning::SilentlyIgnoredBare),
    flag(None, "iptables-version", FlagMeaning::IgnoredWithNote),
    flag(None, "cni-mode", FlagMeaning::IgnoredWithNoteBare),
    flag(None, "host-nsenter-exec", FlagMeaning::IgnoredWithNoteBare),
    flag(None, "iptables-trace-logging", FlagMeaning::IgnoredWithNoteBare),
    flag(None, "log_as_json", FlagMeaning::SilentlyIgnoredBare),
    flag(None, "log_output_level", FlagMeaning::SilentlyIgnored),
];

/// The inputs that Istio reads from environment variables only.
pub(super) static VARIABLES: [(&str, FlagMeaning); 5] = [
    ("ENVOY_USER", FlagMeaning::Setting(Setting::ProxyUser)),
    ("DRY_RUN_FILE_PATH", FlagMeaning::Setting(Setting::DryRunFile)),
    ("ISTIO_OUTBOUND_OWNER_GROUPS", FlagMeaning::Numbers("owner_groups_include")),
    ("ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE", FlagMeaning::Numbers("owner_groups_exclude")),
    ("ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR", FlagMeaning::Value("loopback_cidr_v4")),
];

/// Converts a number to decimal: `+8080` and `0x1f90` are 8080. Blanks around it have no meaning to iptables and nft.
pub(super) fn number(text: &str) -> Cow<'_, str> {
    let text = text.trim();
    let digits = text.strip_prefix('+').unwrap_or(text);
    let parsed = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(hexadecimal) if is_all(hexadecimal, u8::is_ascii_hexdigit) => {
            u32::from_str_radix(hexadecimal, 16).ok()
        }
        // A leading zero (octal in iptables) stays: the policy file's parser refuses it.
        None if is_all(digits, u8::is_ascii_digit) => return Cow::Borrowed(digits),
        _ => None,
    };
    parsed.map_or(Cow::Borrowed(text), |number| Cow::Owned(number.to_string()))
}

/// Converts a port, or a range of ports to one with a hyphen: `4000:5000`, `:5000` (from 0) and `4000:` (to 65535).
pub(super) fn ports(text: &str) -> Cow<'_, str> {
    let Some((first, last)) = text.split_once(':') else { return number(text) };
    let bound = |port, default| if str::is_empty(port) { Cow::Borrowed(default) } else { number(port) };
    Cow::Owned(format!("{}-{}", bound(first, "0"), bound(last, "65535")))
}

/// Converts a mode. `istio-iptables` compares it with `TPROXY` only, so any case of `redirect` is REDIRECT. `tproxy`
/// and `NONE` mean REDIRECT there, too, but name another mode, so they are unchanged.
pub(super) fn mode(text: &str) -> &str {
    if text.eq_ignore_ascii_case("REDIRECT") { "REDIRECT" } else { text }
}

fn is_all(text: &str, is_allowed: impl Fn(&u8) -> bool) -> bool {
    !text.is_empty() && text.bytes().all(|byte| is_allowed(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_ranges_of_iptables_become_those_of_a_policy_file() {
        for (text, decimal) in [
            ("8080", "8080"),
            ("+8080", "8080"),
            ("0x1f90", "8080"),
            ("0X1F90", "8080"),
            ("+0x1f90", "8080"),
            (" 8080\t", "8080"),
            ("0x1f90 ", "8080"),
            ("4000:5000", "4000-5000"),
            (":5000", "0-5000"),
            ("4000:", "4000-65535"),
            ("0xfa0:+5000", "4000-5000"),
            (" 4000 : 5000 ", "4000-5000"),
        ] {
            assert_eq!(ports(text), decimal, "{text}");
        }
        for unchanged in ["", "+", "0x", "0xg", "++1", "05000", "-1", "http", "0x100000000", "10.0.0.0/8"] {
            assert_eq!(number(unchanged), unchanged);
        }
        assert_eq!(number("+05000"), "05000", "the leading zero is refused later");
    }

    /// The rows of docs/CONFIGURE.md, section 5.3, up to the sentence about an option.
    #[test]
    fn the_page_has_every_flag_with_its_variables_and_its_policy_key() {
        let (_, section) = include_str!("../../../../docs/CONFIGURE.md").split_once("### 5.3 ").unwrap();
        let (section, _) = section.split_once("\n## ").unwrap();
        let rows: Vec<&str> = section.lines().filter(|line| line.starts_with("| `")).collect();
        let code = |name: &str| format!("`{name}`");
        let mut expected = Vec::new();
        for flag in &FLAGS {
            let long = code(&format!("--{}", flag.long));
            let short =
                flag.short.map_or(String::new(), |letter| format!(", {}", code(&format!("-{letter}"))));
            let variables: Vec<String> = flag.variables().map(|name| code(&name)).collect();
            let key = flag.meaning.key().map_or(String::new(), |key| format!("{} |", code(key)));
            expected.push(format!("| {long}{short} | {} | {key}", variables.join(", ")));
        }
        for (variable, meaning) in VARIABLES {
            let key = meaning.key().map_or(String::new(), |key| format!("{} |", code(key)));
            expected.push(format!("| `-` | {} | {key}", code(variable)));
        }
        for (row, expected) in rows.iter().zip(&expected) {
            assert!(row.starts_with(expected), "{row}\n{expected}");
        }
        assert_eq!(rows.len(), expected.len());
    }
}
