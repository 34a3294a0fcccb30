//! Gybe's rules as `iptables -S` and `iptables -L -n -v -x --line-numbers` print them (1.8.9). Rendering for people: no
//! code of Gybe parses it.

use super::words::words;
use crate::inventory::{Inventory, Item, Part};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Gybe's rules in one table. Rules and policies of other owners are left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableListing {
    /// `iptables` or `ip6tables`.
    pub program: &'static str,
    /// `raw`, `mangle` or `nat`.
    pub table: String,
    /// As `-S` prints them.
    pub commands: String,
    /// As `-L -n -v -x --line-numbers` prints them.
    pub columns: String,
}

/// The built-in chains that have rules of Gybe, in iptables' order.
const BUILT_IN: [&str; 2] = ["PREROUTING", "OUTPUT"];

/// The tables in the order of a packet.
const TABLES: [&str; 3] = ["raw", "mangle", "nat"];

/// Returns the tables of an inventory that an iptables backend read.
#[must_use]
pub fn listings(found: &Inventory) -> Vec<TableListing> {
    let mut tables = BTreeMap::<(&str, usize), Vec<(&str, &Part)>>::new();
    for part in &found.parts {
        let mut name = part.name.splitn(3, ' ');
        let (Some(family), Some(table), Some(chain)) = (name.next(), name.next(), name.next()) else {
            continue;
        };
        let position = TABLES.iter().position(|known| *known == table).unwrap_or(TABLES.len());
        tables.entry((family, position)).or_default().push((chain, part));
    }
    tables.into_iter().map(|((family, table), chains)| listing(family, table, chains)).collect()
}

fn listing(family: &str, table: usize, mut chains: Vec<(&str, &Part)>) -> TableListing {
    let rank = |chain: &str| BUILT_IN.iter().position(|known| *known == chain).unwrap_or(BUILT_IN.len());
    chains.sort_by_key(|(chain, _)| (rank(chain), (*chain).to_owned()));
    let is_v6 = family == "ip6";
    TableListing {
        program: if is_v6 { "ip6tables" } else { "iptables" },
        table: TABLES.get(table).copied().unwrap_or_default().to_owned(),
        commands: commands(&chains),
        columns: columns(&chains, is_v6),
    }
}

fn text(rule: &Item) -> String {
    String::from_utf8_lossy(&rule.form).into_owned()
}

fn commands(chains: &[(&str, &Part)]) -> String {
    let own = chains.iter().filter(|(chain, _)| !BUILT_IN.contains(chain));
    let mut lines: String = own.map(|(chain, _)| format!("-N {chain}\n")).collect();
    for (chain, part) in chains {
        part.items.iter().for_each(|rule| lines += &format!("-A {chain} {}\n", text(rule)));
    }
    lines
}

const TITLES: &str =
    "num      pkts      bytes target     prot opt in     out     source               destination         \n";

fn columns(chains: &[(&str, &Part)], is_v6: bool) -> String {
    let rules: Vec<Columns> =
        chains.iter().flat_map(|(_, part)| &part.items).map(|rule| Columns::of(&text(rule), is_v6)).collect();
    let mut lines = String::new();
    for (at, (chain, part)) in chains.iter().enumerate() {
        let between = if at == 0 { "" } else { "\n" };
        let references = rules.iter().filter(|rule| rule.target == *chain).count();
        let references =
            if BUILT_IN.contains(chain) { String::new() } else { format!(" ({references} references)") };
        lines += &format!("{between}Chain {chain}{references}\n{TITLES}");
        for (at, rule) in part.items.iter().enumerate() {
            let (packets, bytes) = (rule.packets.unwrap_or(0), rule.bytes.unwrap_or(0));
            // Writing to a String cannot fail.
            let _ = writeln!(
                lines,
                "{:<4} {packets:>8} {bytes:>8} {}",
                at + 1,
                Columns::of(&text(rule), is_v6).line()
            );
        }
    }
    lines
}

/// The columns of one rule.
#[derive(Debug, Default)]
struct Columns {
    target: String,
    is_goto: bool,
    protocol: String,
    arrives_by: String,
    leaves_by: String,
    source: String,
    destination: String,
    /// The matches and the target's options, each after a blank.
    rest: String,
}

impl Columns {
    fn of(rule: &str, is_v6: bool) -> Self {
        let anywhere = if is_v6 { " ::/0" } else { " 0.0.0.0/0" };
        let mut columns = Self {
            protocol: "0".to_owned(),
            arrives_by: "*".to_owned(),
            leaves_by: "*".to_owned(),
            source: anywhere.to_owned(),
            destination: anywhere.to_owned(),
            ..Self::default()
        };
        let words = words(rule).unwrap_or_default();
        let mut words = words.iter().map(String::as_str);
        let (mut not, mut module) = (false, "");
        while let Some(word) = words.next() {
            if word == "!" {
                not = true;
                continue;
            }
            // An option without a value.
            if matches!(word, "--save-mark" | "--restore-mark") {
                columns.rest += if word == "--save-mark" { " CONNMARK save" } else { " CONNMARK restore" };
                continue;
            }
            let value = words.next().unwrap_or_default();
            match word {
                "-m" => module = value,
                _ => columns.add(word, value, not, module),
            }
            not = not && word == "-m";
        }
        columns
    }

    fn add(&mut self, option: &str, value: &str, not: bool, module: &str) {
        let bang = if not { "!" } else { "" };
        let ports = |one: &str, many: &str| {
            let what = if value.contains(':') { many } else { one };
            format!(" {module} {what}:{bang}{value}")
        };
        match option {
            "-s" => self.source = address(value, not),
            "-d" => self.destination = address(value, not),
            "-i" => self.arrives_by = value.to_owned(),
            "-o" => self.leaves_by = value.to_owned(),
            "-p" => self.protocol = if value == "udp" { "17".to_owned() } else { "6".to_owned() },
            "-j" => self.target = value.to_owned(),
            "-g" => (self.target, self.is_goto) = (value.to_owned(), true),
            "--sport" => self.rest += &ports("spt", "spts"),
            "--dport" => self.rest += &ports("dpt", "dpts"),
            "--sports" | "--dports" => {
                let inverted = if not { " !" } else { "" };
                self.rest += &format!(" multiport {} {inverted}{value}", option.trim_start_matches('-'));
            }
            "--uid-owner" => self.rest += &format!(" owner UID match {value}"),
            "--gid-owner" => self.rest += &format!(" owner GID match {value}"),
            "--mark" if module == "connmark" => self.rest += &format!(" connmark match {bang} {value}"),
            "--mark" => {
                let inverted = if not { "! " } else { "" };
                self.rest += &format!(" mark match {inverted}{value}");
            }
            "--ctstate" => self.rest += &format!(" ctstate {value}"),
            "--comment" => self.rest += &format!(" /* {value} */"),
            "--to-ports" => self.rest += &format!(" redir ports {value}"),
            "--on-port" => self.rest += &format!(" TPROXY redirect {{ip}}:{value}"),
            "--on-ip" => self.rest = self.rest.replace("{ip}", value),
            "--tproxy-mark" => self.rest += &format!(" mark {value}"),
            "--set-xmark" => {
                self.rest += &format!(" MARK set {}", value.trim_end_matches("/0xffffffff"));
            }
            "--zone" => self.rest += &format!(" CT zone {value}"),
            // The masks of CONNMARK are all bits.
            "--nfmask" | "--ctmask" => {}
            other => self.rest += &format!(" {bang}{other} {value}"),
        }
    }

    fn line(&self) -> String {
        let Self { target, protocol, arrives_by, leaves_by, source, destination, rest, .. } = self;
        let goto = if self.is_goto { "[goto] " } else { "" };
        format!(
            "{target:<9}  {protocol:<5}--  {arrives_by:<6} {leaves_by:<6} {source:<20} {destination:<20} {goto}{rest}"
        )
    }
}

/// An address of one host has no prefix length. The first column is for the inversion.
fn address(network: &str, not: bool) -> String {
    let whole = if network.contains(':') { "/128" } else { "/32" };
    format!("{}{}", if not { "!" } else { " " }, network.strip_suffix(whole).unwrap_or(network))
}
