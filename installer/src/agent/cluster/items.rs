//! The items of a list, one at a time, out of bytes as they come. Pure.
//!
//! A server may answer with a node's whole list at once, megabytes of it; what is kept of a pod is a
//! few hundred bytes. So no more of a list is ever in memory than one item.

use super::pods::LONGEST_OBJECT;

/// What is around the items: kind, version, the way to the next page.
const LONGEST_REST: usize = 64 << 10;

/// Cuts a list (`{"kind": …, "metadata": …, "items": [ … ]}`) into its items and what is around them.
/// What is no JSON is found by who reads the pieces.
#[derive(Debug, Default)]
pub(super) struct Items {
    item: Vec<u8>,
    rest: Vec<u8>,
    /// The last text at the list's own level: its last member's name, where an array begins.
    name: Vec<u8>,
    depth: usize,
    within: bool,
    text: Text,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Text {
    #[default]
    Outside,
    Inside,
    Escaped,
}

/// More than any list has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooLong;

impl Items {
    /// Takes the next bytes, and hands over each item that they end.
    pub(super) fn feed(&mut self, bytes: &[u8], mut found: impl FnMut(&[u8])) -> Result<(), TooLong> {
        for byte in bytes {
            self.take(*byte)?;
            // An item stands two levels deep, and is whole when its own bracket has closed.
            if self.within && self.depth == 2 && *byte == b'}' && self.text == Text::Outside {
                found(&self.item);
                self.item.clear();
            }
        }
        Ok(())
    }

    /// The list without its items.
    pub(super) fn rest(self) -> Vec<u8> {
        self.rest
    }

    fn take(&mut self, byte: u8) -> Result<(), TooLong> {
        let outside = self.text == Text::Outside;
        self.read_text(byte);
        if outside && matches!(byte, b'[' | b'{') {
            self.within |= byte == b'[' && self.depth == 1 && self.name == b"items";
            self.depth = self.depth.saturating_add(1);
        } else if outside && matches!(byte, b']' | b'}') {
            self.depth = self.depth.saturating_sub(1);
            self.within &= self.depth > 1;
        }
        let between = self.depth == 2 && matches!(byte, b',' | b' ' | b'\t' | b'\r' | b'\n');
        match (self.within, self.depth) {
            // The bracket that opens the array belongs to the list.
            (true, 2) if byte == b'[' && self.item.is_empty() => push(&mut self.rest, byte, LONGEST_REST),
            (true, _) if between && self.item.is_empty() => Ok(()),
            (true, _) => push(&mut self.item, byte, LONGEST_OBJECT),
            (false, _) => push(&mut self.rest, byte, LONGEST_REST),
        }
    }

    fn read_text(&mut self, byte: u8) {
        self.text = match (self.text, byte) {
            (Text::Outside, b'"') => {
                self.name.clear();
                Text::Inside
            }
            (Text::Inside, b'\\') => Text::Escaped,
            (Text::Inside, b'"') | (Text::Outside, _) => Text::Outside,
            (Text::Inside | Text::Escaped, _) => {
                if self.depth == 1 && self.name.len() < 16 {
                    self.name.push(byte);
                }
                Text::Inside
            }
        };
    }
}

fn push(bytes: &mut Vec<u8>, byte: u8, most: usize) -> Result<(), TooLong> {
    if bytes.len() >= most {
        return Err(TooLong);
    }
    bytes.push(byte);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    /// The items as they were cut, and the rest, when the text comes in pieces of this length.
    fn cut(text: &str, piece: usize) -> (Vec<Value>, Value) {
        let (mut items, mut found) = (Items::default(), Vec::new());
        for bytes in text.as_bytes().chunks(piece) {
            items.feed(bytes, |item| found.push(serde_json::from_slice(item).unwrap())).unwrap();
        }
        (found, serde_json::from_slice(&items.rest()).unwrap())
    }

    fn whole(list: &Value) -> (Vec<Value>, Value) {
        let mut rest = list.clone();
        let items = match rest.get_mut("items") {
            Some(Value::Array(items)) => std::mem::take(items),
            _ => Vec::new(),
        };
        (items, rest)
    }

    #[test]
    fn a_list_is_cut_wherever_its_items_stand() {
        for list in [
            json!({ "kind": "PodList", "metadata": { "continue": "x" }, "items": [] }),
            json!({ "items": [{ "a": 1 }, { "b": [{ "items": [{ "c": "]}" }] }] }], "z": 1 }),
            json!({ "a": "items", "b": [1, 2], "items": [{ "a": "\\\"}{[" }] }),
            json!({ "metadata": { "items": [{ "no": 1 }] }, "items": null }),
            json!({ "kind": "Status", "message": "no list at all" }),
        ] {
            for text in [list.to_string(), format!("{list:#}")] {
                for piece in [1, 2, 7, 4096] {
                    assert_eq!(cut(&text, piece), whole(&list), "{text}");
                }
            }
        }
    }

    #[test]
    fn what_never_ends_is_not_gathered() {
        let endless = |start: &str, most: usize| {
            let mut items = Items::default();
            items.feed(start.as_bytes(), |_| unreachable!("nothing ends")).unwrap();
            (0..=most).any(|_| items.feed(b"x", |_| unreachable!("nothing ends")).is_err())
        };
        assert!(endless(r#"{"items": [{"a": ""#, LONGEST_OBJECT));
        assert!(endless(r#"{"metadata": ""#, LONGEST_REST));
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            any::<String>().prop_map(Value::from)
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-z\"\\\\{]{0,6}|items", inner, 0..4)
                    .prop_map(|map| map.into_iter().collect()),
            ]
        })
    }

    proptest! {
        #[test]
        fn nothing_an_object_may_hold_misleads_it(
            around in prop::collection::btree_map("[a-z\"\\\\]{1,6}", value(), 0..3),
            items in prop::collection::vec(prop::collection::btree_map(".{0,3}", value(), 0..3), 0..4),
            piece in 1usize..40,
        ) {
            let mut list: Value = around.into_iter().collect();
            list["items"] = items.into_iter().map(|item| item.into_iter().collect::<Value>()).collect();
            prop_assert_eq!(cut(&list.to_string(), piece), whole(&list));
        }
    }
}
