//! A text that shares its memory with others. A profile names thousands of functions, nearly all of which the store knows:
//! to make and free an object for each of their texts took more time than everything else that is done with them.

use hashbrown::HashMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

/// A part of a longer text.
#[derive(Clone, Default)]
pub struct Text {
    whole: Arc<str>,
    start: u32,
    end: u32,
}

impl Text {
    /// The part of `whole` between two positions; empty if there is no such part.
    #[must_use]
    pub fn part(whole: &Arc<str>, start: u32, end: u32) -> Self {
        Self { whole: Arc::clone(whole), start, end }
    }
}

/// Puts some texts into memory of their own, where others that shared theirs are not needed any more.
pub(crate) fn gather<'a>(texts: impl Iterator<Item = &'a mut Text>) {
    // Many functions are of one file, whose name is there once.
    let mut places: HashMap<(*const u8, usize), u32> = HashMap::new();
    let mut whole = String::new();
    let mut place = |text: &Text| {
        *places.entry((text.as_ptr(), text.len())).or_insert_with(|| {
            whole.push_str(text);
            position(whole.len() - text.len())
        })
    };
    let placed: Vec<(u32, &mut Text)> = texts.map(|text| (place(text), text)).collect();
    let whole = Arc::from(whole);
    for (start, text) in placed {
        *text = Text::part(&whole, start, start + position(text.len()));
    }
}

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        self.whole.get(self.start as usize..self.end as usize).unwrap_or_default()
    }
}

/// Texts of a request are far below 4 GiB together: one that is not would be cut.
fn position(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

impl From<Arc<str>> for Text {
    fn from(whole: Arc<str>) -> Self {
        let end = position(whole.len());
        Self { whole, start: 0, end }
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self::from(Arc::<str>::from(text))
    }
}

impl PartialEq for Text {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Text {}

impl Hash for Text {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_the_texts_and_stay_so_in_memory_of_their_own() {
        let whole = Arc::from("onetwo\u{e4}three");
        let part = |start, end| Text::part(&whole, start, end);
        let mut parts = [part(0, 3), part(3, 6), part(8, 13), part(3, 6), part(6, 6), part(9, 99)];
        let shown = ["one", "two", "three", "two", "", ""];
        assert_eq!(parts.each_ref().map(|part| &**part), shown);
        // Not on the bounds of a character.
        assert_eq!(&*part(6, 7), "");
        gather(parts[1..5].iter_mut());
        assert_eq!(parts.each_ref().map(|part| &**part), shown);
        assert_eq!(parts[2].whole.len(), "twothree".len());
        assert_eq!(parts[0], Text::from("one"));
    }
}
