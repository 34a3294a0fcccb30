//! A few values by key, in the order they came. For a handful a map of the standard library would be
//! many times the code, and the plugin is small.

/// Each key at most once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table<K, V>(Vec<(K, V)>);

impl<K: Copy + PartialEq, V> Table<K, V> {
    /// What stands under `key`.
    pub fn get(&self, key: K) -> Option<&V> {
        self.0.iter().find(|(other, _)| *other == key).map(|(_, value)| value)
    }

    /// Does anything stand under `key`?
    pub fn contains(&self, key: K) -> bool {
        self.get(key).is_some()
    }

    /// Puts `value` under `key`, in place of what stands there.
    pub fn insert(&mut self, key: K, value: V) {
        match self.0.iter_mut().find(|(other, _)| *other == key) {
            Some((_, there)) => *there = value,
            None => self.0.push((key, value)),
        }
    }

    /// Keeps the values of which `is_kept` is true.
    pub fn retain(&mut self, is_kept: impl Fn(&V) -> bool) {
        self.0.retain(|(_, value)| is_kept(value));
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (K, &V)> {
        self.0.iter().map(|(key, value)| (*key, value))
    }

    /// All values.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.0.iter().map(|(_, value)| value)
    }

    /// Is nothing in it?
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Copy + PartialEq, V> FromIterator<(K, V)> for Table<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(all: I) -> Self {
        let mut table = Self::default();
        all.into_iter().for_each(|(key, value)| table.insert(key, value));
        table
    }
}
