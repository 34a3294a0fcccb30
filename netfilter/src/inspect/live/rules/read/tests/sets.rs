//! Tables of elements.

use super::*;

#[test]
fn the_elements_of_a_set_are_ranges_of_keys() {
    /// Keys and flags.
    type Element = (&'static [(u16, &'static [u8])], u32);
    type Case = (u32, &'static [Element], Vec<(Vec<u8>, Vec<u8>)>);
    const START: u16 = NFTA_SET_ELEM_KEY;
    const LAST: u16 = NFTA_SET_ELEM_KEY_END;
    const END: u32 = NFT_SET_ELEM_INTERVAL_END;
    let read = |flags: u32, elements: &[Element]| {
        let written = elements.iter().map(|(keys, flags)| {
            move |w: &mut Writer| {
                keys.iter().for_each(|(kind, bytes)| key(*kind, bytes)(w));
                w.be32(NFTA_SET_ELEM_FLAGS, *flags);
            }
        });
        let mut recording = Recording {
            sets: vec![set_of("s", flags, 2)],
            elements: vec![vec![elements_of(written)]],
            ..Recording::default()
        };
        let set = recording.read().unwrap().sets.remove(0);
        let ranges: Vec<_> = set.elements.into_iter().map(|one| (one.first, one.last)).collect();
        (ranges, set.catch_all.is_some(), set.is_dynamic)
    };
    let range = |first: [u8; 2], last: [u8; 2]| (first.to_vec(), last.to_vec());
    let interval = NFT_SET_INTERVAL;
    let cases: [Case; 6] = [
        (0, &[(&[(START, &[1, 2])], 0)], vec![range([1, 2], [1, 2])]),
        // An interval ends before the next element, which may be listed first.
        (interval, &[(&[(START, &[2, 0])], END), (&[(START, &[1, 0])], 0)], vec![range([1, 0], [1, 255])]),
        // Where one ends and the next starts, both are there.
        (
            interval,
            &[
                (&[(START, &[1, 0])], 0),
                (&[(START, &[2, 0])], 0),
                (&[(START, &[2, 0])], END),
                (&[(START, &[3, 0])], END),
            ],
            vec![range([1, 0], [1, 255]), range([2, 0], [2, 255])],
        ),
        // The last interval has no end; an end before every start ends none.
        (interval, &[(&[(START, &[0, 0])], END), (&[(START, &[9, 0])], 0)], vec![range([9, 0], [255, 255])]),
        (interval, &[(&[(START, &[1, 0]), (LAST, &[1, 9])], 0)], vec![range([1, 0], [1, 9])]),
        (interval, &[(&[], NFT_SET_ELEM_CATCHALL)], Vec::new()),
    ];
    let of_two_parts = Recording {
        sets: vec![described_set("s", interval, 2, &[1, 1])],
        elements: vec![vec![elements_of([key(START, &[1, 2])])]],
        ..Recording::default()
    };
    let alone = { of_two_parts }.read().unwrap().sets.remove(0).elements.remove(0);
    assert_eq!((alone.first, alone.last), range([1, 2], [1, 2]), "a key of two parts has no other end");
    for (flags, elements, ranges) in cases {
        let catches_all = elements.iter().any(|(_, flags)| *flags == NFT_SET_ELEM_CATCHALL);
        assert_eq!(read(flags, elements), (ranges, catches_all, false), "{elements:?}");
    }
    for flags in [NFT_SET_TIMEOUT, NFT_SET_EVAL] {
        assert_eq!(read(flags, &[]), (Vec::new(), false, true), "{flags:#x}");
    }
}

/// Another statement keeps an element from matching some packets.
#[test]
fn an_element_has_no_statement_but_a_counter_or_its_set_changes() {
    let name = |name: &'static str| move |w: &mut Writer| w.text(NFTA_EXPR_NAME, name);
    for (statement, is_dynamic) in [("counter", false), ("last", false), ("limit", true), ("quota", true)] {
        let alone = move |w: &mut Writer| w.nested(NFTA_SET_ELEM_EXPR, name(statement));
        let listed = move |w: &mut Writer| {
            w.nested(NFTA_SET_ELEM_EXPRESSIONS, |w| {
                w.nested(NFTA_LIST_ELEM, name("counter"));
                w.nested(NFTA_LIST_ELEM, name(statement));
            });
        };
        for with in [&alone as &dyn Fn(&mut Writer), &listed] {
            let element = |w: &mut Writer| {
                key(NFTA_SET_ELEM_KEY, &[1, 2])(w);
                with(w);
            };
            let mut recording = Recording {
                sets: vec![set_of("s", 0, 2)],
                elements: vec![vec![elements_of([element])]],
                ..Recording::default()
            };
            assert_eq!(recording.read().unwrap().sets.remove(0).is_dynamic, is_dynamic, "{statement}");
        }
    }
}
