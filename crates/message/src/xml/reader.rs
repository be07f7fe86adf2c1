//! The strict reader of XML.

use memchr::{memchr, memmem};

use crate::pointer::{POINTERS_MAX, STEPS_MAX};
use crate::unreadable::{DEPTH_MAX, Unreadable};
use crate::xml::text::{check_characters, check_references, check_text, decoded, has_space_around};
use crate::xml::{FoundTexts, XmlPaths, XmlText, without_prefix};

/// Types of XML-RPC whose element contains only text.
const SIMPLE_TYPES: [&str; 8] = [
    "string",
    "int",
    "i4",
    "i8",
    "boolean",
    "double",
    "dateTime.iso8601",
    "base64",
];
/// Types of XML-RPC that are no text.
const NESTED_TYPES: [&str; 4] = ["struct", "array", "nil", "ex:nil"];

/// How far the open elements follow a path.
#[derive(Clone, Copy, Default)]
struct PathProgress {
    /// Steps that the open elements have, without a look at the numbers of the path.
    named: usize,
    /// Steps whose numbers fit, too. At most `named`.
    picked: usize,
    /// How many elements each step has had in its parent.
    counts: [usize; STEPS_MAX],
}

/// Markup between texts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Markup {
    Start { is_empty: bool },
    End,
    Comment,
    Cdata,
}

/// A reader on its way through a body.
pub(super) struct XmlReader<'p, 'b> {
    paths: &'p XmlPaths,
    text: &'b str,
    at: usize,
    /// The names of the open elements, the root first.
    open: Vec<&'b str>,
    progress: [PathProgress; POINTERS_MAX],
    found: FoundTexts<'b>,
}

/// The name at the beginning of a text.
pub(super) fn name(text: &str) -> Option<&str> {
    let is_first = |byte: u8| byte.is_ascii_alphabetic() || matches!(byte, b'_' | b':' | 0x80..);
    let is_part = |byte: &u8| is_first(*byte) || byte.is_ascii_digit() || b"-.".contains(byte);
    text.bytes().next().filter(|byte| is_first(*byte))?;
    let end = text.as_bytes().iter().position(|byte| !is_part(byte));
    Some(&text[..end.unwrap_or(text.len())])
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

impl<'p, 'b> XmlReader<'p, 'b> {
    pub(super) fn new(paths: &'p XmlPaths, text: &'b str) -> Self {
        Self {
            paths,
            text,
            at: 0,
            open: Vec::new(),
            progress: [PathProgress::default(); POINTERS_MAX],
            found: FoundTexts::new(paths.0.len()),
        }
    }

    /// Reads the whole body.
    pub(super) fn read(mut self) -> Result<FoundTexts<'b>, Unreadable> {
        self.read_declaration()?;
        loop {
            self.skip_space();
            match self.read_markup()? {
                Markup::Comment => {}
                Markup::Start { is_empty } => {
                    self.read_element(is_empty)?;
                    break;
                }
                Markup::End | Markup::Cdata => return Err(self.not_xml()),
            }
        }
        loop {
            self.skip_space();
            match self.rest() {
                "" => return Ok(self.found),
                rest if rest.starts_with("<!--") => self.read_markup()?,
                _ => return Err(Unreadable::BehindEnd { at: self.at }),
            };
        }
    }

    fn rest(&self) -> &'b str {
        &self.text[self.at..]
    }

    fn not_xml(&self) -> Unreadable {
        Unreadable::NotXml { at: self.at }
    }

    /// Passes over white space. True if there was any.
    fn skip_space(&mut self) -> bool {
        let space = self.rest().bytes().take_while(|byte| is_space(*byte));
        let count = space.count();
        self.at += count;
        count > 0
    }

    /// Passes over a token that must come next.
    fn expect(&mut self, token: &str) -> Result<(), Unreadable> {
        match self.rest().starts_with(token) {
            true => {
                self.at += token.len();
                Ok(())
            }
            false => Err(self.not_xml()),
        }
    }

    /// Reads up to a token, and passes over it.
    fn read_until(&mut self, token: &str) -> Result<&'b str, Unreadable> {
        let rest = self.rest();
        let length = memmem::find(rest.as_bytes(), token.as_bytes()).ok_or(self.not_xml())?;
        let text = &rest[..length];
        check_characters(text).map_err(|_| self.not_xml())?;
        self.at += length + token.len();
        Ok(text)
    }

    /// Reads the declaration, which only the first bytes can be.
    fn read_declaration(&mut self) -> Result<(), Unreadable> {
        let Some(rest) = self.text.strip_prefix("<?xml") else {
            return Ok(());
        };
        if !rest.starts_with(|next: char| next.is_ascii() && is_space(next as u8)) {
            return Err(Unreadable::Instruction { at: 0 });
        }
        self.at = "<?xml".len();
        let names = ["version", "encoding", "standalone"];
        let mut next = 0;
        while self.skip_space() && !self.rest().starts_with("?>") {
            let (name, value) = self.read_attribute()?;
            let place = names.iter().position(|known| *known == name);
            match place {
                Some(place) if place >= next && (place == 0 || next > 0) => next = place + 1,
                _ => return Err(self.not_xml()),
            }
            let is_valid = match name {
                "version" => value == "1.0",
                "encoding" if !value.eq_ignore_ascii_case("utf-8") => {
                    return Err(Unreadable::OtherCharset);
                }
                "standalone" => matches!(value, "yes" | "no"),
                _ => true,
            };
            if !is_valid {
                return Err(self.not_xml());
            }
        }
        if next == 0 {
            return Err(self.not_xml());
        }
        self.expect("?>")
    }

    /// Reads an attribute: its name, and its value as it was written.
    fn read_attribute(&mut self) -> Result<(&'b str, &'b str), Unreadable> {
        let name = name(self.rest()).ok_or(self.not_xml())?;
        self.at += name.len();
        self.skip_space();
        self.expect("=")?;
        self.skip_space();
        let quote = match self.rest().as_bytes().first() {
            Some(b'"') => "\"",
            Some(b'\'') => "'",
            _ => return Err(self.not_xml()),
        };
        self.at += 1;
        let from = self.at;
        let value = self.read_until(quote)?;
        if value.contains('<') {
            return Err(Unreadable::NotXml { at: from });
        }
        check_references(value).map_err(|at| Unreadable::NotXml { at: from + at })?;
        Ok((name, value))
    }

    /// Reads the markup that must come next. A start tag opens its element.
    fn read_markup(&mut self) -> Result<Markup, Unreadable> {
        let (at, rest) = (self.at, self.rest());
        match rest.as_bytes() {
            [b'<', b'/', ..] => Ok(Markup::End),
            [b'<', b'?', ..] => Err(Unreadable::Instruction { at }),
            [b'<', b'!', ..] => {
                if rest.starts_with("<!DOCTYPE") {
                    Err(Unreadable::Doctype { at })
                } else if rest.starts_with("<![CDATA[") {
                    self.at += "<![CDATA[".len();
                    self.read_until("]]>")?;
                    Ok(Markup::Cdata)
                } else {
                    self.expect("<!--")?;
                    self.read_until("--")?;
                    self.expect(">")?;
                    Ok(Markup::Comment)
                }
            }
            [b'<', ..] => self.read_start(),
            _ => Err(self.not_xml()),
        }
    }

    /// Reads a start tag.
    fn read_start(&mut self) -> Result<Markup, Unreadable> {
        let from = self.at;
        self.at += 1;
        let name = name(self.rest()).ok_or(self.not_xml())?;
        self.at += name.len();
        let is_empty = loop {
            let had_space = self.skip_space();
            match self.rest().as_bytes() {
                [b'>', ..] => break false,
                [b'/', ..] => {
                    self.at += 1;
                    break true;
                }
                _ if had_space => self.read_attribute()?,
                _ => return Err(self.not_xml()),
            };
        };
        self.expect(">")?;
        if self.open.len() == DEPTH_MAX as usize {
            return Err(Unreadable::TooDeep);
        }
        self.open.push(name);
        self.follow_paths(name, from)?;
        Ok(Markup::Start { is_empty })
    }

    /// Reads the end tag of the innermost element, or closes one that is empty.
    fn close(&mut self, is_empty: bool) -> Result<(), Unreadable> {
        let name = *self.open.last().expect("an element is open");
        let at = self.at;
        if !is_empty {
            self.expect("</")?;
            self.expect(name)?;
            self.skip_space();
            self.expect(">")?;
        }
        self.leave_paths(at)?;
        self.open.pop();
        Ok(())
    }

    /// Reads the content and the end of the element that was opened last.
    fn read_element(&mut self, is_empty: bool) -> Result<(), Unreadable> {
        let mut is_empty = is_empty;
        let outside = self.open.len() - 1;
        loop {
            // The innermost element has begun.
            if self.is_wanted() {
                self.read_wanted(is_empty)?;
            } else if is_empty {
                self.close(true)?;
            }
            loop {
                if self.open.len() == outside {
                    return Ok(());
                }
                self.skip_text()?;
                let at = self.at;
                match self.read_markup()? {
                    Markup::Start { is_empty: empty } => {
                        is_empty = empty;
                        break;
                    }
                    Markup::End => self.close(false)?,
                    Markup::Cdata if self.is_on_the_way() => return Err(Unreadable::Cdata { at }),
                    Markup::Cdata | Markup::Comment => {}
                }
            }
        }
    }

    /// Passes over text up to the next markup.
    fn skip_text(&mut self) -> Result<(), Unreadable> {
        let (at, text) = (self.at, self.read_text()?);
        match text.bytes().all(is_space) || !self.is_on_the_way() {
            true => Ok(()),
            false => Err(Unreadable::MixedText { at }),
        }
    }

    /// Reads text up to the next markup, as it was written.
    fn read_text(&mut self) -> Result<&'b str, Unreadable> {
        let rest = self.rest();
        let end = memchr(b'<', rest.as_bytes()).ok_or(Unreadable::NotXml {
            at: self.text.len(),
        })?;
        let text = &rest[..end];
        check_text(text).map_err(|at| Unreadable::NotXml { at: self.at + at })?;
        self.at += end;
        Ok(text)
    }

    /// Reads a wanted element, or one of its siblings that the path does not pick.
    fn read_wanted(&mut self, is_empty: bool) -> Result<(), Unreadable> {
        if is_empty {
            self.keep(XmlText::Text("".into()));
            return self.close(true);
        }
        let is_value = self.open.last() == Some(&"value");
        let (at, raw) = (self.at, self.read_text()?);
        let is_blank = raw.bytes().all(is_space);
        let markup_at = self.at;
        match self.read_markup_of_text()? {
            Markup::Start { is_empty } if is_value && is_blank => {
                self.read_type(is_empty, markup_at)?;
                let (at, raw) = (self.at, self.read_text()?);
                let is_blank = raw.bytes().all(is_space);
                if !is_blank || self.read_markup_of_text()? != Markup::End {
                    return Err(Unreadable::MixedText { at });
                }
            }
            Markup::End => self.keep_text(raw, at)?,
            _ => return Err(Unreadable::MixedText { at: markup_at }),
        }
        self.close(false)
    }

    /// Reads the markup behind a wanted text, which must not go on behind it.
    fn read_markup_of_text(&mut self) -> Result<Markup, Unreadable> {
        let at = self.at;
        match self.read_markup()? {
            Markup::Comment => Err(Unreadable::CommentInText { at }),
            Markup::Cdata => Err(Unreadable::Cdata { at }),
            markup => Ok(markup),
        }
    }

    /// Reads the element in a wanted value, which has been opened, up to its end.
    fn read_type(&mut self, is_empty: bool, from: usize) -> Result<(), Unreadable> {
        let name = *self.open.last().expect("an element is open");
        if NESTED_TYPES.contains(&name) {
            self.keep(XmlText::Nested);
            return self.read_element(is_empty);
        }
        if !SIMPLE_TYPES.contains(&name) {
            return Err(Unreadable::MixedText { at: from });
        }
        if is_empty {
            self.keep(XmlText::Text("".into()));
            return self.close(true);
        }
        let (at, raw) = (self.at, self.read_text()?);
        let markup_at = self.at;
        if self.read_markup_of_text()? != Markup::End {
            return Err(Unreadable::MixedText { at: markup_at });
        }
        self.keep_text(raw, at)?;
        self.close(false)
    }

    fn keep_text(&mut self, raw: &'b str, at: usize) -> Result<(), Unreadable> {
        let text = decoded(raw);
        if has_space_around(&text) {
            return Err(Unreadable::SpaceAround { at });
        }
        self.keep(XmlText::Text(text));
        Ok(())
    }

    /// Keeps the text of the innermost wanted element for each path that picks it.
    fn keep(&mut self, text: XmlText<'b>) {
        for (number, path) in self.paths.0.iter().enumerate() {
            if self.progress[number].picked == path.steps.len() {
                self.found.set(number, text.clone());
            }
        }
    }

    /// Whether the innermost element is at the end of a path.
    fn is_wanted(&self) -> bool {
        let steps = self.open.len() - 1;
        let mut paths = self.paths.0.iter().zip(&self.progress);
        paths.any(|(path, progress)| progress.named == steps && path.steps.len() == steps)
    }

    /// Whether a path leads through the innermost element.
    fn is_on_the_way(&self) -> bool {
        let steps = self.open.len() - 1;
        let mut paths = self.paths.0.iter().zip(&self.progress);
        paths.any(|(path, progress)| progress.named == steps && path.steps.len() > steps)
    }

    /// Goes a step on along each path that the element which was opened follows.
    fn follow_paths(&mut self, name: &str, at: usize) -> Result<(), Unreadable> {
        // The root is no step.
        let step_here = self.open.len().checked_sub(2);
        let local_name = without_prefix(name);
        let is_envelope = step_here.is_none_or(|step| step == 0 && name == "methodName");
        for (path, progress) in self.paths.0.iter().zip(&mut self.progress) {
            let expected = step_here.filter(|step| *step == progress.named);
            let expected = expected.and_then(|step| Some((step, path.steps.get(step)?)));
            match expected {
                Some((number, step)) if step.is_like(local_name) => {
                    if *step.name != *name {
                        return Err(Unreadable::ElementOtherName { at });
                    }
                    let count = progress.counts[number];
                    progress.counts[number] += 1;
                    if step.index.is_none() && count > 0 {
                        return Err(Unreadable::ElementTwice { at });
                    }
                    let is_picked = step.index.is_none_or(|index| index == count);
                    if is_picked && progress.picked == number {
                        progress.picked += 1;
                    }
                    progress.named += 1;
                    if let Some(next) = progress.counts.get_mut(number + 1) {
                        *next = 0;
                    }
                }
                // Inside a wanted element any name may occur.
                _ if progress.named == path.steps.len() => {}
                _ if path.steps.iter().any(|step| step.is_like(local_name))
                    || path.leads_to_value() && !is_envelope =>
                {
                    return Err(Unreadable::ElementElsewhere { at });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Goes a step back along each path that the innermost element follows.
    fn leave_paths(&mut self, at: usize) -> Result<(), Unreadable> {
        let steps = self.open.len() - 1;
        for (path, progress) in self.paths.0.iter().zip(&mut self.progress) {
            if progress.named != steps || steps == 0 {
                continue;
            }
            let is_one_of_many = path.steps[steps - 1].index.is_some();
            let next = path.steps.get(steps);
            if is_one_of_many
                && next.is_some_and(|next| next.index.is_none())
                && progress.counts[steps] == 0
            {
                return Err(Unreadable::ElementMissing { at });
            }
            progress.named -= 1;
            progress.picked = progress.picked.min(progress.named);
        }
        Ok(())
    }
}
