//! A rule of nf_tables on one line, close to what `nft` prints.

use super::expr::{Code, Data, Expr, Nat, NatKind};
use super::field::{Component, Field, LoadedFields};
use super::{Set, Statement};
use crate::kernel::uapi::*;
use crate::model::ruleset::{Family, Transport};
use std::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};

/// How many elements of a set are printed.
const SHOWN: usize = 8;

/// The rule's text; `set` finds a set by its name.
pub(super) fn rule<'s>(statements: &[Statement], set: impl Fn(&str) -> Option<&'s Set>) -> String {
    let mut loaded = LoadedFields::default();
    let mut words: Vec<String> = Vec::new();
    for statement in statements {
        match statement {
            Statement::Expr(expr) => {
                if let Some(word) = word(expr, &loaded, &set) {
                    add(&mut words, word);
                }
                loaded.track(expr);
            }
            Statement::Match(test) => words.push(test.to_string()),
            Statement::Target(target) => words.push(target.to_string()),
            Statement::Header(_) => {}
        }
    }
    words.join(" ")
}

/// Adds a word, and removes a word before it that `nft` does not print: the family before an address, and the test of
/// a protocol before a test of its ports.
fn add(words: &mut Vec<String>, word: String) {
    let is_port = word.starts_with("dport ") || word.starts_with("sport ");
    let before = words.last().map(String::as_str);
    let word = match before {
        Some("meta l4proto tcp") if is_port => format!("tcp {word}"),
        Some("meta l4proto udp") if is_port => format!("udp {word}"),
        Some("meta nfproto ipv4") if word.starts_with("ip ") => word,
        Some("meta nfproto ipv6") if word.starts_with("ip6 ") => word,
        _ => {
            words.push(word);
            return;
        }
    };
    words.pop();
    words.push(word);
}

fn word<'s>(expr: &Expr, loaded: &LoadedFields, set: &impl Fn(&str) -> Option<&'s Set>) -> Option<String> {
    let constant = |at: &usize| loaded.constant(*at).map_or("a map's value".to_owned(), number);
    Some(match expr {
        Expr::Load { .. } | Expr::Value { .. } | Expr::Bitwise { .. } | Expr::ByteOrder { .. } => {
            return None;
        }
        Expr::Nothing(name) if name == "counter" => return None,
        Expr::Compare { op, at, value } => {
            let field = loaded.field(*at);
            let is_state = field.is_some_and(|f| f.field == Field::ConnectionState && f.mask.is_some());
            let op = match *op {
                // A state test masks the state and compares with zero.
                NFT_CMP_NEQ if is_state => "",
                _ if is_state => "!= ",
                NFT_CMP_NEQ => "!= ",
                2 => "< ",
                NFT_CMP_LTE => "<= ",
                4 => "> ",
                NFT_CMP_GTE => ">= ",
                _ => "",
            };
            format!("{} {op}{}", name(field), masked_value(field, value))
        }
        Expr::Range { inverted, at, first, last } => {
            let field = loaded.field(*at);
            let not = if *inverted { "!= " } else { "" };
            format!("{} {not}{}-{}", name(field), value(field, first), value(field, last))
        }
        Expr::Lookup { set: set_name, at, inverted, to } => {
            let not = if *inverted { "!= " } else { "" };
            let kind = match to {
                None => "",
                Some(super::expr::VERDICT) => "vmap ",
                Some(_) => "map ",
            };
            let found = set(set_name);
            let (length, parts) = found.map_or((4, &[][..]), |set| (set.key_length, &set.parts));
            let key = loaded.key(*at, length, parts);
            let fields: Vec<String> = key.into_iter().map(|(_, field)| name(field)).collect();
            let elements = found.map_or_else(|| format!("@{set_name}"), |set| elements(set, *at, loaded));
            format!("{} {not}{kind}{elements}", fields.join(" . "))
        }
        Expr::SetMark { from } => format!("meta mark set {}", constant(from)),
        Expr::SetConnectionMark { from } => format!("ct mark set {}", constant(from)),
        Expr::SetZone { from, direction } => {
            let direction = match direction {
                None => "",
                Some(0) => "original ",
                Some(_) => "reply ",
            };
            format!("ct {direction}zone set {}", loaded.constant(*from).map_or("?".to_owned(), zone))
        }
        Expr::Verdict(code) => verdict(code),
        Expr::Nat(nat) => translation(nat, loaded),
        Expr::Tproxy { port, .. } => {
            format!("tproxy to :{}", port.and_then(|at| loaded.constant(at)).map_or("?".to_owned(), big))
        }
        Expr::Untrack => "notrack".to_owned(),
        Expr::Reject => "reject".to_owned(),
        Expr::Nothing(name) | Expr::Test(name) | Expr::OtherConnections(name) => name.clone(),
        Expr::Update(set) => format!("update @{set}"),
        Expr::ObjectOf(map) => format!("object of @{map}"),
        Expr::Write { from, base, offset, length, .. } => {
            let base = ["ll", "nh", "th", "ih"].get(usize::try_from(*base).ok()?).copied().unwrap_or("?");
            let value = loaded.constant(*from).map_or("?".to_owned(), hex);
            format!("@{base},{},{} set {value}", offset * 8, length * 8)
        }
        Expr::Match(test) => test.to_string(),
        Expr::Target(target) => target.to_string(),
        Expr::Unknown(name) => format!("[{name}]"),
    })
}

fn name(component: Option<&Component>) -> String {
    let Some(Component { field, length, .. }) = component else { return "[value]".to_owned() };
    match (field, *length) {
        (Field::Source | Field::Destination, 0..=4) => format!("ip {field}"),
        (Field::Source | Field::Destination, _) => format!("ip6 {field}"),
        _ => field.to_string(),
    }
}

fn masked_value(component: Option<&Component>, bytes: &[u8]) -> String {
    let text = value(component, bytes);
    if let Some(Component { field: Field::ConnectionState, mask: Some(mask), .. }) = component {
        return states(mask);
    }
    let Some(mask) = component.and_then(|component| component.mask.as_deref()) else { return text };
    let bits: u32 = mask.iter().map(|byte| byte.count_ones()).sum();
    match component.map(|component| &component.field) {
        Some(Field::Source | Field::Destination) => format!("{text}/{bits}"),
        _ => format!("& {} == {text}", number(mask)),
    }
}

fn value(component: Option<&Component>, bytes: &[u8]) -> String {
    let Some(Component { field, is_host_order, is_swapped, .. }) = component else { return number(bytes) };
    match field {
        Field::InInterface | Field::OutInterface => {
            let is_prefix = bytes.len() < 16 && !bytes.contains(&0);
            let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default().escape_ascii();
            format!("\"{text}{}\"", if is_prefix { "*" } else { "" })
        }
        Field::Protocol => match bytes {
            [one] => Transport::numbered(*one).map_or_else(|| number(bytes), |found| found.name().to_owned()),
            other => number(other),
        },
        Field::Family => match bytes {
            [one] => Family::numbered(*one).map_or_else(|| number(bytes), |f| f.to_string().to_lowercase()),
            other => number(other),
        },
        Field::Source | Field::Destination => address(bytes),
        Field::SourcePort | Field::DestinationPort => big(bytes),
        Field::Uid | Field::Gid if *is_swapped => big(bytes),
        Field::Uid | Field::Gid => native(bytes),
        _ if *is_host_order && !is_swapped => number(bytes),
        _ => hex(bytes),
    }
}

/// `NF_CT_STATE_BIT`s by name.
fn states(mask: &[u8]) -> String {
    let bits = <[u8; 4]>::try_from(mask).map_or(0, u32::from_ne_bytes);
    let names = ["invalid", "established", "related", "new", "", "", "untracked"];
    let named = names.iter().enumerate().filter(|(bit, _)| bits & (1 << bit) != 0);
    named.map(|(_, name)| *name).collect::<Vec<_>>().join(",")
}

/// An address, or the first bytes of one: `nft` loads only the bytes of a network's prefix.
fn address(bytes: &[u8]) -> String {
    let whole = |length: usize| {
        let mut padded = bytes.to_vec();
        padded.resize(length, 0);
        padded
    };
    let cut = |length: usize| match bytes.len() {
        bytes if bytes < length => format!("/{}", bytes * 8),
        _ => String::new(),
    };
    match bytes.len() {
        0..=4 => match <[u8; 4]>::try_from(whole(4)) {
            Ok(octets) => format!("{}{}", Ipv4Addr::from(octets), cut(4)),
            Err(_) => hex(bytes),
        },
        _ => match <[u8; 16]>::try_from(whole(16)) {
            Ok(octets) => format!("{}{}", Ipv6Addr::from(octets), cut(16)),
            Err(_) => hex(bytes),
        },
    }
}

/// A number in the machine's byte order, as hexadecimal when it has four bytes.
fn number(bytes: &[u8]) -> String {
    match <[u8; 4]>::try_from(bytes) {
        Ok(four) => format!("{:#x}", u32::from_ne_bytes(four)),
        Err(_) => hex(bytes),
    }
}

fn native(bytes: &[u8]) -> String {
    <[u8; 4]>::try_from(bytes).map_or_else(|_| hex(bytes), |four| u32::from_ne_bytes(four).to_string())
}

fn zone(bytes: &[u8]) -> String {
    <[u8; 2]>::try_from(bytes).map_or_else(|_| hex(bytes), |two| u16::from_ne_bytes(two).to_string())
}

/// A number in network byte order.
fn big(bytes: &[u8]) -> String {
    let number = bytes.iter().take(8).fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    number.to_string()
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::from("0x");
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn verdict(code: &Code) -> String {
    match code {
        Code::Accept => "accept".to_owned(),
        Code::Drop => "drop".to_owned(),
        Code::Continue => "continue".to_owned(),
        Code::Break => "break".to_owned(),
        Code::Return => "return".to_owned(),
        Code::Jump(chain) => format!("jump {chain}"),
        Code::Goto(chain) => format!("goto {chain}"),
        Code::Other(code) if code & 0xff == 3 => "queue".to_owned(),
        Code::Other(code) => format!("verdict {code:#x}"),
    }
}

fn translation(nat: &Nat, loaded: &LoadedFields) -> String {
    let verb = match nat.kind {
        NatKind::Redirect => "redirect",
        NatKind::Destination => "dnat",
        NatKind::Source => "snat",
        NatKind::Masquerade => "masquerade",
    };
    let constant = |at: Option<usize>, print: fn(&[u8]) -> String| {
        at.map(|at| loaded.constant(at).map_or("[map]".to_owned(), print))
    };
    let (address, port) = (constant(nat.address, address), constant(nat.port, big));
    match (address, port) {
        (None, None) => verb.to_owned(),
        (address, port) => {
            let port = port.map(|port| format!(":{port}")).unwrap_or_default();
            format!("{verb} to {}{port}", address.unwrap_or_default())
        }
    }
}

fn elements(set: &Set, at: usize, loaded: &LoadedFields) -> String {
    if !set.name.starts_with("__") {
        return format!("@{}", set.name);
    }
    let fields = loaded.key(at, set.key_length, &set.parts);
    let key = |bytes: &[u8]| {
        let (mut rest, mut words) = (bytes, Vec::new());
        for (length, field) in &fields {
            let (part, after) = rest.split_at_checked(*length).unwrap_or((rest, &[]));
            words.push(value(*field, part));
            rest = after.get(length.next_multiple_of(4) - length..).unwrap_or_default();
        }
        words.join(" . ")
    };
    let mut shown: Vec<String> = set
        .elements
        .iter()
        .take(SHOWN)
        .map(|element| {
            let mut text = key(&element.first);
            if element.first != element.last {
                text = format!("{text}-{}", key(&element.last));
            }
            match &element.data {
                Data::Verdict(code) => format!("{text} : {}", verdict(code)),
                Data::Value(value) => format!("{text} : {}", hex(value)),
                Data::None => text,
            }
        })
        .collect();
    if set.elements.len() > SHOWN {
        shown.push("...".to_owned());
    }
    shown.extend(set.catch_all.as_ref().map(|_| "*".to_owned()));
    format!("{{ {} }}", shown.join(", "))
}
