//! Lists that the kernel returns, without a kernel: recorded entries, or the attributes of a batch, which are what the
//! kernel lists once it has carried out the batch.

use super::*;
use crate::compile::compile;
use crate::kernel::netlink::attr::Attributes;
use crate::kernel::netlink::list::Listed;
use crate::kernel::netlink::message::{HEADER, Header, Messages};
use crate::model::policy::{Families, Groups, InterfaceName, Owners, RedirectPolicy};
use crate::model::ruleset::Family;
use crate::nft::batch::{Batch, GENERIC, Start};
use crate::nft::lists::ListEntry;

/// An entry as a lister gives it: `struct nfgenmsg` of generation 7, then attributes.
fn entry(attributes: &[(u16, &[u8])]) -> Vec<u8> {
    let mut writer = Writer::default();
    let header = Header { kind: 0, flags: 0, sequence: 0 };
    writer.message(header, &[NFPROTO_INET, 0, 0, 7], |w| {
        for (kind, name) in attributes {
            w.text(*kind, name);
        }
    });
    writer.finish().unwrap().split_off(HEADER)
}

/// A namespace whose table has these chains and sets, and no rules; with the requests for its lists.
fn namespace(chains: &[&[u8]], sets: &[&[u8]]) -> (Result<Inventory, NftError>, Vec<Vec<u8>>) {
    let table = TABLE.as_bytes();
    let mut requests = Vec::new();
    let inventory = inventory_by(TABLE, &mut |request, sequence, _| {
        requests.push(request.to_vec());
        Ok(Listed::Whole(match sequence {
            1 => sets.iter().map(|n| entry(&[(NFTA_SET_TABLE, table), (NFTA_SET_NAME, n)])).collect(),
            2 => chains.iter().map(|n| entry(&[(NFTA_CHAIN_TABLE, table), (NFTA_CHAIN_NAME, n)])).collect(),
            _ => Vec::new(),
        }))
    });
    (inventory, requests)
}

#[test]
fn a11_chains_and_sets_of_any_name_are_distinguished_and_requested_by_that_name() {
    let (inventory, requests) = namespace(&[b"\xff", b"\xfe", b"nat-output"], &[b"\x1b[2J"]);
    let inventory = inventory.unwrap();
    let names: Vec<&str> = inventory.parts.iter().map(|part| part.name.as_str()).collect();
    assert_eq!(names, [r"\x1b[2J", r"\xfe", r"\xff", "nat-output"]);
    assert!(inventory.differences(&inventory).is_empty());
    assert!(requests[4].windows(5).any(|bytes| bytes == b"\x1b[2J\0"), "{requests:x?}");
}

#[test]
fn f25_a_list_with_one_name_twice_is_read_again_and_then_refused() {
    let (inventory, requests) = namespace(&[b"nat-output", b"nat-output"], &[]);
    assert!(matches!(inventory, Err(NftError::KeptChanging { attempts: lists::ATTEMPTS })), "{inventory:?}");
    assert!(requests.len() > 4);
}

#[test]
fn f25_a_set_with_one_element_twice_is_read_again() {
    let kernel = Recording::of(&rules());
    for (damaged, is_read) in [(1, true), (lists::ATTEMPTS, false)] {
        let mut attempts = 0;
        let inventory = inventory_by(TABLE, &mut |request, sequence, _| {
            let mut list = kernel.list(request);
            attempts += u32::from(sequence == 1);
            // The lists of the sets' elements come after those of sets, chains, rules and tables.
            if sequence > 4 && attempts <= damaged {
                list.push(list[0].clone());
            }
            Ok(Listed::Whole(list))
        });
        assert_eq!(inventory.ok(), is_read.then(|| kernel.inventory()));
        assert_eq!(attempts, (damaged + 1).min(lists::ATTEMPTS));
    }
}

/// The lists of a namespace after a batch.
#[derive(Default)]
struct Recording {
    tables: Vec<Vec<u8>>,
    chains: Vec<Vec<u8>>,
    rules: Vec<Vec<u8>>,
    sets: Vec<Vec<u8>>,
    elements: Vec<Vec<u8>>,
}

impl Recording {
    fn of(rules: &Ruleset) -> Self {
        let batch = Batch::apply(rules, Start::Fresh).unwrap();
        let mut recording = Self::default();
        for message in Messages(batch.bytes()).flatten() {
            let list = match message.header.kind.checked_sub(NFNL_SUBSYS_NFTABLES << 8) {
                Some(NFT_MSG_NEWTABLE) => &mut recording.tables,
                Some(NFT_MSG_NEWCHAIN) => &mut recording.chains,
                Some(NFT_MSG_NEWRULE) => &mut recording.rules,
                Some(NFT_MSG_NEWSET) => &mut recording.sets,
                Some(NFT_MSG_NEWSETELEM) => &mut recording.elements,
                _ => continue,
            };
            list.push(message.body.to_vec());
        }
        recording
    }

    /// The list for a request.
    fn list(&self, request: &[u8]) -> Vec<Vec<u8>> {
        let message = Messages(request).next().unwrap().unwrap();
        assert_eq!(message.header.flags, 0x301, "NLM_F_REQUEST | NLM_F_DUMP");
        let (header, attributes) = message.body.split_at(GENERIC);
        assert_eq!(header, [NFPROTO_INET, 0, 0, 0]);
        match message.header.kind.checked_sub(NFNL_SUBSYS_NFTABLES << 8) {
            Some(NFT_MSG_GETTABLE) => self.tables.clone(),
            Some(NFT_MSG_GETCHAIN) => self.chains.clone(),
            Some(NFT_MSG_GETRULE) => self.rules.clone(),
            Some(NFT_MSG_GETSET) => self.sets.clone(),
            Some(NFT_MSG_GETSETELEM) => {
                let name =
                    |entry: &[u8]| Attributes::of(entry).get(NFTA_SET_ELEM_LIST_SET).unwrap().text().to_vec();
                let is_of_set = |entry: &&Vec<u8>| name(&entry[GENERIC..]) == name(attributes);
                self.elements.iter().filter(is_of_set).cloned().collect()
            }
            other => panic!("a request of kind {other:?}"),
        }
    }

    fn inventory(&self) -> Inventory {
        inventory_by(TABLE, &mut |request, _, _| Ok(Listed::Whole(self.list(request)))).unwrap()
    }

    /// The differences that `change` makes, as text.
    fn differences(rules: &Ruleset, change: impl FnOnce(&mut Self)) -> Vec<String> {
        let mut recording = Self::of(rules);
        change(&mut recording);
        let observed = recording.inventory();
        let differences: Vec<String> =
            desired(rules).differences(&observed).iter().map(ToString::to_string).collect();
        assert_eq!(holds(rules, &observed), differences.is_empty(), "{differences:?}");
        differences
    }
}

/// An entry of one of the lists, of any table.
fn object(body: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.message(Header { kind: 0, flags: 0, sequence: 0 }, &[NFPROTO_INET, 0, 0, 0], body);
    writer.finish().unwrap().split_off(HEADER)
}

/// The entry with the attribute `kind` replaced, or removed.
fn with(entry: &[u8], kind: u16, value: Option<&[u8]>) -> Vec<u8> {
    object(|w| {
        for attribute in Attributes::of(&entry[GENERIC..]).filter(|attribute| attribute.kind != kind) {
            w.attr(attribute.kind, attribute.value);
        }
        if let Some(value) = value {
            w.attr(kind, value);
        }
    })
}

/// Rules with a set of every type, intervals that reach the last key among them.
fn rules() -> Ruleset {
    let mut policy = RedirectPolicy::injected(Families::V4AndV6);
    let nets = |text: &str| text.split(',').map(|net| net.parse::<ipnet::IpNet>().unwrap()).collect();
    policy.outbound.excluded_ports = [22].into_iter().chain(8000..=8100).chain(65000..=65535).collect();
    policy.outbound.excluded_to = nets("10.0.0.0/8,11.0.0.0/16,255.255.255.0/24,fd00::/8,2001:db8::1/128");
    policy.outbound.groups = Groups::AllBut([7, 4000].into());
    policy.proxy_uids = Owners::new(1337, [4001]);
    policy.excluded_interfaces = ["eth1", "veth-a.b"].map(|name| InterfaceName::parse(name).unwrap()).into();
    compile(&policy)
}

fn elements<'i>(inventory: &'i Inventory, set: &str) -> Vec<&'i str> {
    let part = inventory.parts.iter().find(|part| part.kind == PartKind::Set && part.name == set).unwrap();
    part.items.iter().map(|item| item.id.as_str()).collect()
}

#[test]
fn a_batch_listed_back_is_the_desired_inventory() {
    let rules = rules();
    let observed = Recording::of(&rules).inventory();
    assert_eq!(observed, desired(&rules));
    assert!(holds(&rules, &observed) && !holds(&rules, &Inventory::default()));
    assert_eq!(elements(&observed, "outbound-excluded-port"), ["22", "8000-8100", "65000-65535"]);
    assert_eq!(
        elements(&observed, "outbound-excluded-v4"),
        ["10.0.0.0-11.0.255.255", "255.255.255.0-255.255.255.255"]
    );
    assert_eq!(elements(&observed, "outbound-excluded-v6")[0], "2001:db8::1");
    assert_eq!(elements(&observed, "excluded-interface-out"), ["eth1", "veth-a.b"]);
    assert_eq!(elements(&observed, "proxy-uid").len(), 2);
    let chains = observed.parts.iter().filter(|part| part.kind == PartKind::Chain);
    assert!(chains.clone().count() == 3 && chains.clone().all(|chain| !chain.items.is_empty()));
    let forms: std::collections::BTreeSet<_> =
        chains.flat_map(|chain| &chain.items).map(|rule| &rule.form).collect();
    assert!(forms.len() > 10, "rules have different expressions");
}

#[test]
fn each_change_of_the_table_is_named() {
    let rules = rules();
    let differences = |change: fn(&mut Recording)| Recording::differences(&rules, change);
    assert!(differences(|_| ()).is_empty());

    let flags = |flags: u32| {
        Recording::differences(&rules, |kernel| {
            // Also where the list has the table twice.
            kernel.tables[0] = with(&kernel.tables[0], NFTA_TABLE_FLAGS, Some(&flags.to_be_bytes()));
            kernel.tables.push(kernel.tables[0].clone());
        })
    };
    assert!(flags(0).is_empty());
    assert_eq!(flags(1), ["the table's flag dormant should not be there"]);
    assert_eq!(flags(2), ["the table's flag owner should not be there"]);
    assert_eq!(flags(4), ["the table's flag persist should not be there"]);

    assert_eq!(
        differences(|kernel| {
            kernel.chains.push(object(|w| {
                w.text(NFTA_CHAIN_TABLE, TABLE);
                w.text(NFTA_CHAIN_NAME, "another");
            }));
        }),
        ["chain another should not be there"]
    );
    assert_eq!(
        differences(|kernel| kernel.chains.retain(|chain| !chain.windows(12).any(|b| b == b"nat-loopback"))),
        ["chain nat-loopback is missing"]
    );
    assert_eq!(
        differences(|kernel| {
            let chain = kernel.chains.iter_mut().find(|chain| chain.windows(10).any(|b| b == b"nat-output"));
            let chain = chain.unwrap();
            *chain = with(chain, NFTA_CHAIN_POLICY, Some(&NF_DROP.to_be_bytes()));
        }),
        ["chain nat-output is not as it was written"]
    );
    assert_eq!(
        differences(|kernel| {
            let rule = kernel.rules.pop().unwrap();
            let rule = with(&rule, NFTA_RULE_USERDATA, None);
            kernel.rules.push(with(&rule, NFTA_RULE_HANDLE, Some(&77_u64.to_be_bytes())));
        })
        .last()
        .unwrap(),
        "rule \"handle 77\" in chain nat-loopback should not be there"
    );
}

#[test]
fn each_change_of_a_set_is_named() {
    let rules = rules();
    let is_of = |entry: &[u8], set: &str| {
        let attributes = Attributes::of(&entry[GENERIC..]);
        attributes.get(NFTA_SET_NAME).is_some_and(|name| name.text() == set.as_bytes())
    };
    let differences = |set: &str, change: &dyn Fn(&mut Recording, usize)| {
        Recording::differences(&rules, |kernel| {
            // A set's name and the name of its elements' set have the same number.
            let at = kernel.elements.iter().position(|entry| is_of(entry, set)).unwrap();
            change(kernel, at);
        })
    };
    let add = |flags: u32, key: Option<&'static [u8]>| {
        move |kernel: &mut Recording, at: usize| {
            let list =
                Attributes::of(&kernel.elements[at][GENERIC..]).get(NFTA_SET_ELEM_LIST_ELEMENTS).unwrap();
            let mut writer = Writer::default();
            for element in Attributes::of(list.value) {
                writer.attr(NFTA_LIST_ELEM, element.value);
            }
            writer.nested(NFTA_LIST_ELEM, |w| {
                if let Some(key) = key {
                    w.nested(NFTA_SET_ELEM_KEY, |w| w.attr(NFTA_DATA_VALUE, key));
                }
                w.be32(NFTA_SET_ELEM_FLAGS, flags);
            });
            let elements = writer.finish().unwrap();
            kernel.elements[at] = with(&kernel.elements[at], NFTA_SET_ELEM_LIST_ELEMENTS, Some(&elements));
        }
    };
    let port = "outbound-excluded-port";
    assert_eq!(
        differences(port, &add(NFT_SET_ELEM_CATCHALL, None)),
        [format!("element * of set {port} should not be there")]
    );
    assert_eq!(
        differences(port, &|kernel, at| {
            add(0, Some(&[0, 7]))(kernel, at);
            add(NFT_SET_ELEM_INTERVAL_END, Some(&[0, 9]))(kernel, at);
        }),
        [format!("element 7-8 of set {port} should not be there")]
    );
    // nft(8) adds an end at zero where no interval starts there.
    assert!(differences(port, &add(NFT_SET_ELEM_INTERVAL_END, Some(&[0, 0]))).is_empty());
    assert_eq!(
        differences("proxy-uid", &|kernel, at| {
            add(0, Some(&[9, 9, 9, 9]))(kernel, at);
        }),
        ["element 151587081 of set proxy-uid should not be there"]
    );
    assert_eq!(
        differences(port, &|kernel, at| {
            kernel.elements.remove(at);
        })
        .len(),
        3
    );
    assert_eq!(
        differences(port, &|kernel, _| {
            let set = kernel.sets.iter_mut().find(|set| is_of(set, port)).unwrap();
            *set = with(set, NFTA_SET_FLAGS, Some(&(NFT_SET_INTERVAL | NFT_SET_TIMEOUT).to_be_bytes()));
        }),
        [format!("set {port} is not as it was written")]
    );
}

#[test]
fn objects_of_another_table_are_not_listed() {
    let rules = rules();
    let other = |entry: &Vec<u8>, table: u16| with(entry, table, Some(b"other\0"));
    let differences = Recording::differences(&rules, |kernel| {
        let table = other(&kernel.tables[0], NFTA_TABLE_NAME);
        kernel.tables.push(with(&table, NFTA_TABLE_FLAGS, Some(&1_u32.to_be_bytes())));
        kernel.chains.extend(kernel.chains.clone().iter().map(|entry| other(entry, NFTA_CHAIN_TABLE)));
        kernel.rules.extend(kernel.rules.clone().iter().map(|entry| other(entry, NFTA_RULE_TABLE)));
        kernel.sets.extend(kernel.sets.clone().iter().map(|entry| other(entry, NFTA_SET_TABLE)));
    });
    assert_eq!(differences, [""; 0]);
}

#[test]
fn an_entry_of_a_list_of_every_family_has_its_family() {
    let lister: &mut Lister<'_> = &mut |request, _, _| {
        assert_eq!(Messages(request).next().unwrap().unwrap().body[0], NFPROTO_UNSPEC);
        Ok(Listed::Whole(vec![vec![Family::V4.number(), 0, 0, 7], vec![Family::V6.number(), 0, 0, 7]]))
    };
    let read = |lists: &mut Lists<'_, '_>| lists.all(lists::TABLES, |_| ());
    let tables = lists::of_one_generation(lister, NFPROTO_UNSPEC, read).unwrap();
    assert_eq!(
        tables.iter().map(ListEntry::family).collect::<Vec<_>>(),
        [Family::V4.number(), Family::V6.number()]
    );
}

#[test]
fn lists_that_change_while_they_are_read_are_read_again_a_bounded_number_of_times() {
    for (changes, is_read) in [(0, true), (1, true), (lists::ATTEMPTS - 1, true), (lists::ATTEMPTS, false)] {
        let mut requests = 0;
        let lister: &mut Lister<'_> = &mut |_, _, _| {
            requests += 1;
            Ok(if requests <= changes { Listed::Changed } else { Listed::Whole(Vec::new()) })
        };
        let read = |lists: &mut Lists<'_, '_>| lists.all(lists::CHAINS, |_| ());
        let chains = lists::of_one_generation(lister, NFPROTO_UNSPEC, read);
        assert_eq!(chains.is_ok(), is_read, "{changes} changes");
    }
}

#[test]
fn lists_of_two_generations_are_read_again() {
    let mut generation = 0;
    let lister: &mut Lister<'_> = &mut |_, _, _| {
        // Each of the first three lists is of a generation of its own.
        generation = 3.min(generation + 1);
        Ok(Listed::Whole(vec![vec![NFPROTO_INET, 0, 0, generation]]))
    };
    let attempts = std::cell::Cell::new(0);
    let read = |lists: &mut Lists<'_, '_>| {
        attempts.set(attempts.get() + 1);
        let sets = lists.all(lists::SETS, |_| ())?;
        Ok((sets, lists.all(lists::CHAINS, |_| ())?))
    };
    assert!(lists::of_one_generation(lister, NFPROTO_INET, read).is_ok());
    assert_eq!(attempts.get(), 2);
}
