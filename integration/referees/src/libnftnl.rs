//! Calls of libnftnl for what nftnl has no safe types: five expressions, sets, and reading back.
#![expect(
    unsafe_code,
    reason = "nftnl has no safe functions for these; all calls of the C library are in this module"
)]

use crate::expressions::{Bound, Element, Set, SetContent, ValueOrder};
use gybe_netfilter::model::ruleset::{Family, Is};
use nftnl::expr::Expression;
use nftnl::nftnl_sys::{self as sys, libc};
use nftnl::{ProtoFamily, Rule, Table};
use std::ffi::{CStr, CString, c_char};
use std::ptr::NonNull;

/// Register 1, the only one in use.
const REGISTER: u32 = libc::NFT_REG_1 as u32;

/// Expressions for which nftnl 0.9 has no type.
pub enum Missing<'a> {
    /// Matches if register 1 is outside of these bounds.
    Outside(&'a [u8], &'a [u8]),
    /// Matches if register 1 is in a set, or is not.
    Lookup(Is, CString),
    /// Sets the connection's zone to register 1.
    SetZone,
    /// Redirects to the local port in register 1.
    Redirect,
    /// Passes the packet to the transparent socket on the port in register 1.
    Tproxy(Family),
}

impl Expression for Missing<'_> {
    fn to_expr(&self, _rule: &Rule<'_>) -> NonNull<sys::nftnl_expr> {
        match self {
            Self::Outside(low, high) => Raw::new(c"range")
                .number(sys::NFTNL_EXPR_RANGE_SREG, REGISTER)
                .number(sys::NFTNL_EXPR_RANGE_OP, libc::NFT_RANGE_NEQ as u32)
                .bytes(sys::NFTNL_EXPR_RANGE_FROM_DATA, low)
                .bytes(sys::NFTNL_EXPR_RANGE_TO_DATA, high),
            Self::Lookup(is, set) => {
                let raw = Raw::new(c"lookup")
                    .number(sys::NFTNL_EXPR_LOOKUP_SREG, REGISTER)
                    .text(sys::NFTNL_EXPR_LOOKUP_SET, set);
                match is {
                    Is::In => raw,
                    Is::NotIn => raw.number(sys::NFTNL_EXPR_LOOKUP_FLAGS, libc::NFT_LOOKUP_F_INV as u32),
                }
            }
            Self::SetZone => Raw::new(c"ct")
                .number(sys::NFTNL_EXPR_CT_KEY, libc::NFT_CT_ZONE as u32)
                .number(sys::NFTNL_EXPR_CT_SREG, REGISTER),
            Self::Redirect => Raw::new(c"redir").number(sys::NFTNL_EXPR_REDIR_REG_PROTO_MIN, REGISTER),
            Self::Tproxy(family) => Raw::new(c"tproxy")
                .number(
                    sys::NFTNL_EXPR_TPROXY_FAMILY,
                    match family {
                        Family::V4 => libc::NFPROTO_IPV4 as u32,
                        Family::V6 => libc::NFPROTO_IPV6 as u32,
                    },
                )
                .number(sys::NFTNL_EXPR_TPROXY_REG_PORT, REGISTER),
        }
        .0
    }
}

/// libnftnl's constants are wider than its parameters.
fn short(attribute: u32) -> u16 {
    u16::try_from(attribute).unwrap()
}

/// An expression. The receiver frees it (`Expression::to_expr`).
struct Raw(NonNull<sys::nftnl_expr>);

impl Raw {
    fn new(name: &CStr) -> Self {
        // SAFETY: the name is a C string; libnftnl only compares it with its own table.
        let expr = unsafe { sys::nftnl_expr_alloc(name.as_ptr()) };
        Self(NonNull::new(expr).expect("libnftnl knows this expression"))
    }

    fn number(self, attribute: u32, value: u32) -> Self {
        // SAFETY: the expression is alive and of the type the attribute belongs to, a 32-bit one.
        unsafe { sys::nftnl_expr_set_u32(self.0.as_ptr(), short(attribute), value) };
        self
    }

    fn bytes(self, attribute: u32, value: &[u8]) -> Self {
        let length = u32::try_from(value.len()).unwrap();
        // SAFETY: libnftnl copies `length` bytes, which are there.
        unsafe { sys::nftnl_expr_set(self.0.as_ptr(), short(attribute), value.as_ptr().cast(), length) };
        self
    }

    fn text(self, attribute: u32, value: &CStr) -> Self {
        // SAFETY: libnftnl copies the C string.
        unsafe { sys::nftnl_expr_set_str(self.0.as_ptr(), short(attribute), value.as_ptr()) };
        self
    }
}

/// nftnl's set with type, ranges and user data, for which nftnl has no functions.
pub struct NamedSet<'t>(nftnl::set::Set<'t, AnyKey>);

/// nftnl needs the type of a set's elements at compile time; `NamedSet::new` sets the real one.
pub struct AnyKey;

impl nftnl::set::SetKey for AnyKey {
    const TYPE: u32 = 0;
    const LEN: u32 = 0;

    fn data(&self) -> Box<[u8]> {
        Box::default()
    }
}

impl<'t> NamedSet<'t> {
    /// Makes the set with all its elements.
    pub fn new(table: &'t Table, of: &Set) -> Self {
        let name = CString::new(of.name.as_str()).unwrap();
        let set = Self(nftnl::set::Set::new_named(&name, of.id, table, ProtoFamily::Inet));
        set.number(sys::NFTNL_SET_KEY_TYPE, of.key_type);
        set.number(sys::NFTNL_SET_KEY_LEN, of.key_length);
        if of.holds == SetContent::Ranges {
            set.number(sys::NFTNL_SET_FLAGS, libc::NFT_SET_INTERVAL as u32);
        }
        if of.printed == ValueOrder::HostOrder {
            set.host_order();
        }
        for element in &of.elements {
            set.add(element);
        }
        set
    }

    /// nftnl's set, for a batch.
    pub fn inner(&self) -> &nftnl::set::Set<'t, AnyKey> {
        &self.0
    }

    fn number(&self, attribute: u32, value: u32) {
        // SAFETY: the set is alive; all attributes given here are 32-bit numbers.
        unsafe { sys::nftnl_set_set_u32(self.raw(), short(attribute), value) };
    }

    fn host_order(&self) {
        /// `BYTEORDER_HOST_ENDIAN`, include/datatype.h of nftables.
        const HOST: u32 = 1;
        let kind = u8::try_from(sys::NFTNL_UDATA_SET_KEYBYTEORDER).unwrap();
        // SAFETY: the buffer is freed after its bytes were copied into the set, which is alive; it
        // has room for one number, which takes six bytes.
        unsafe {
            let buffer = sys::nftnl_udata_buf_alloc(64);
            assert!(!buffer.is_null() && sys::nftnl_udata_put_u32(buffer, kind, HOST));
            let (bytes, length) = (sys::nftnl_udata_buf_data(buffer), sys::nftnl_udata_buf_len(buffer));
            let copied = sys::nftnl_set_set_data(self.raw(), short(sys::NFTNL_SET_USERDATA), bytes, length);
            sys::nftnl_udata_buf_free(buffer);
            assert_eq!(copied, 0);
        }
    }

    fn add(&self, element: &Element) {
        let length = u32::try_from(element.key.len()).unwrap();
        // SAFETY: libnftnl copies the key, and the set, which is alive, frees the element.
        unsafe {
            let raw = sys::nftnl_set_elem_alloc();
            assert!(!raw.is_null());
            sys::nftnl_set_elem_set(raw, short(sys::NFTNL_SET_ELEM_KEY), element.key.as_ptr().cast(), length);
            if element.bound == Bound::End {
                let end = libc::NFT_SET_ELEM_INTERVAL_END as u32;
                sys::nftnl_set_elem_set_u32(raw, short(sys::NFTNL_SET_ELEM_FLAGS), end);
            }
            sys::nftnl_set_elem_add(self.raw(), raw);
        }
    }

    fn raw(&self) -> *mut sys::nftnl_set {
        self.0.as_ptr().as_ptr()
    }
}

/// Returns libnftnl's text of a dumped rule without handle and position.
pub fn rule_text(message: &[u8]) -> String {
    let message = Aligned::new(message);
    // SAFETY: the message is whole and aligned, the rule is freed before leaving.
    unsafe {
        let rule = sys::nftnl_rule_alloc();
        assert!(!rule.is_null());
        assert_eq!(sys::nftnl_rule_nlmsg_parse(message.header(), rule), 0, "libnftnl cannot read a rule");
        sys::nftnl_rule_unset(rule, short(sys::NFTNL_RULE_HANDLE));
        sys::nftnl_rule_unset(rule, short(sys::NFTNL_RULE_POSITION));
        let text = print_to_string(|room, size| sys::nftnl_rule_snprintf(room, size, rule, 0, 0));
        sys::nftnl_rule_free(rule);
        text
    }
}

/// Returns libnftnl's text of a dumped set with the elements of these messages.
pub fn set_text(set: &[u8], elements: &[&[u8]]) -> String {
    let set = Aligned::new(set);
    // SAFETY: the messages are whole and aligned, the set is freed before leaving.
    unsafe {
        let raw = sys::nftnl_set_alloc();
        assert!(!raw.is_null());
        assert_eq!(sys::nftnl_set_nlmsg_parse(set.header(), raw), 0, "libnftnl cannot read a set");
        for message in elements {
            let message = Aligned::new(message);
            assert_eq!(sys::nftnl_set_elems_nlmsg_parse(message.header(), raw), 0, "nor its elements");
        }
        sys::nftnl_set_unset(raw, short(sys::NFTNL_SET_HANDLE));
        let text = print_to_string(|room, size| sys::nftnl_set_snprintf(room, size, raw, 0, 0));
        sys::nftnl_set_free(raw);
        text
    }
}

/// Returns the output of a `snprintf` of libnftnl of any length.
fn print_to_string(print: impl Fn(*mut c_char, usize) -> i32) -> String {
    let needed = usize::try_from(print(std::ptr::null_mut(), 0)).expect("libnftnl can print it");
    let mut room = vec![0_u8; needed + 1];
    print(room.as_mut_ptr().cast(), room.len());
    CStr::from_bytes_until_nul(&room).unwrap().to_string_lossy().into_owned()
}

/// A netlink message that is aligned like its header struct.
struct Aligned(Vec<u32>);

impl Aligned {
    fn new(message: &[u8]) -> Self {
        let expression = |bytes: &[u8]| u32::from_ne_bytes(bytes.try_into().unwrap());
        Self(message.chunks_exact(4).map(expression).collect())
    }

    fn header(&self) -> *const libc::nlmsghdr {
        self.0.as_ptr().cast()
    }
}
