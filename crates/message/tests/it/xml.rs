//! The rules of messages in XML, one by one.

use std::borrow::Cow;

use tidegate_message::{PointersError, Unreadable, XmlPath, XmlPaths, XmlText};

fn set(paths: &[&str]) -> Result<XmlPaths, PointersError> {
    XmlPaths::new(paths.iter().map(|path| path.parse().expect("a path")))
}

fn find(body: &str, path: &str) -> Result<Option<String>, Unreadable> {
    let set = set(&[path]).expect("a set");
    let found = set.find(body.as_bytes())?;
    Ok(found.get(0).map(|text| match text {
        XmlText::Text(text) => text.clone().into_owned(),
        XmlText::Nested => "nested".to_owned(),
    }))
}

fn check(body: &str, path: &str, expected: Option<&str>) {
    assert_eq!(
        find(body, path),
        Ok(expected.map(str::to_owned)),
        "{path} of {body}"
    );
}

fn check_unreadable(body: &str, path: &str, expected: Unreadable) {
    assert_eq!(find(body, path), Err(expected), "{path} of {body}");
}

#[test]
fn a_path_is_names_with_numbers_behind_them() {
    let path = |text: &str| text.parse::<XmlPath>();
    let valid = path("params/param/0/value").expect("a path");
    assert_eq!(
        (valid.as_str(), valid.to_string()),
        ("params/param/0/value", valid.to_string())
    );
    for wrong in [
        "",
        "/methodName",
        "0/value",
        "param/0/1",
        "a//b",
        "a b",
        "<a>",
    ] {
        let error = path(wrong).expect_err(wrong).to_string();
        let sentence =
            "is not a path; write names of elements below the root, such as params/param/0/value";
        assert_eq!(error, format!("\"{wrong}\" {sentence}"));
    }
    let error = path("a/b/c/d/e/f/g/h/i").expect_err("too many").to_string();
    assert_eq!(
        error,
        "\"a/b/c/d/e/f/g/h/i\" names 9 elements, and at most 8 are possible"
    );
}

#[test]
fn paths_that_no_message_can_satisfy_are_refused() {
    let sentence = |paths: &[&str]| set(paths).expect_err("impossible").to_string();
    assert_eq!(
        sentence(&["methodName", "MethodName"]),
        "\"MethodName\" and \"methodName\" differ only by case, so no message with one of them is readable"
    );
    assert_eq!(
        sentence(&["params", "params/param/0/value"]),
        "\"params/param/0/value\" and \"params\" cannot both be wanted: one leads through the other"
    );
    assert!(set(&["methodName", "params/param/0/value", "params/param/1/value"]).is_ok());
}

#[test]
fn texts_are_found_in_one_pass_and_borrowed_unless_they_have_references() {
    let body = "<?xml version='1.0' encoding='UTF-8'?>\n<!-- a call -->\n<methodCall>\n\
        <methodName>VM.start</methodName>\n<params>\n <param><value>a&lt;&#x62;\r\nc</value></param>\n \
        <param><!-- 2 --><value>\n<string>d</string></value ></param>\n\
        <param><value><struct><member><name>n</name><value><i4>1</i4></value></member></struct></value></param>\n\
        </params></methodCall>\n<!-- end -->\n";
    let paths = [
        "params/param/1/value",
        "methodName",
        "params/param/0/value",
        "params/param/2/value",
        "params/param/3/value",
    ];
    let set = set(&paths).expect("a set");
    let found = set.find(body.as_bytes()).expect("readable");
    let texts: Vec<_> = found.iter().collect();
    assert_eq!(texts[0].and_then(XmlText::as_str), Some("d"));
    assert_eq!(texts[1], Some(&XmlText::Text(Cow::Borrowed("VM.start"))));
    assert!(matches!(texts[1], Some(XmlText::Text(Cow::Borrowed(_)))));
    assert_eq!(texts[2].and_then(XmlText::as_str), Some("a<b\nc"));
    assert_eq!(texts[3], Some(&XmlText::Nested));
    assert_eq!(texts[4], None);
}

#[test]
fn a_number_picks_one_of_the_elements_with_its_name() {
    let body = "<r><a><b>1</b><c/><b>2</b></a></r>";
    check(body, "a/b/1", Some("2"));
    check(body, "a/b/0", Some("1"));
    check(body, "a/b/2", None);
    check(body, "a/c", Some(""));
    check(body, "d", None);
    check_unreadable(body, "a/b", Unreadable::ElementTwice { at: 18 });
}

#[test]
fn an_element_of_a_path_is_where_the_path_has_it() {
    let elsewhere = |at| Unreadable::ElementElsewhere { at };
    check_unreadable("<m><x><m/></x></m>", "m", elsewhere(0));
    check_unreadable("<r><x><m/></x></r>", "m", elsewhere(6));
    check_unreadable(
        "<r><value/><params/></r>",
        "params/param/0/value",
        elsewhere(3),
    );
    check("<r><params/></r>", "params/param/0/value", None);
    check(
        "<r><methodName>x</methodName><params/></r>",
        "params/param/0/value",
        None,
    );
    check_unreadable(
        "<r><string>x</string></r>",
        "params/param/0/value",
        elsewhere(3),
    );
    check_unreadable(
        "<r><params><nil/></params></r>",
        "params/param/0/value",
        elsewhere(11),
    );
    let missing = Unreadable::ElementMissing { at: 18 };
    check_unreadable(
        "<r><params><param></param></params></r>",
        "params/param/1/value",
        missing,
    );
    let other = Unreadable::ElementOtherName { at: 3 };
    check_unreadable("<r><M>x</M></r>", "m", other);
    check_unreadable("<r><p:m>x</p:m></r>", "m", other);
}

#[test]
fn markup_that_a_message_does_not_need_is_unreadable() {
    let not_xml = |at| Unreadable::NotXml { at };
    check_unreadable("", "m", not_xml(0));
    check_unreadable("text", "m", not_xml(0));
    check_unreadable("<r>", "m", not_xml(3));
    check_unreadable("<r></s>", "m", not_xml(5));
    check_unreadable("<r a=1></r>", "m", not_xml(5));
    check_unreadable("<r a='<'></r>", "m", not_xml(6));
    check_unreadable("<r a='&x;'></r>", "m", not_xml(6));
    check_unreadable("<r a='1'b='2'></r>", "m", not_xml(8));
    check_unreadable("<r><x>&nbsp;</x></r>", "m", not_xml(6));
    check_unreadable("<r><x>]]></x></r>", "m", not_xml(6));
    check_unreadable("<r><x>&#0;</x></r>", "m", not_xml(6));
    check_unreadable("<r><x>&#xd800;</x></r>", "m", not_xml(6));
    check_unreadable("<r><!-- a -- b --></r>", "m", not_xml(12));
    check_unreadable("<?xml?><r/>", "m", Unreadable::Instruction { at: 0 });
    check_unreadable("<?xml encoding='utf-8'?><r/>", "m", not_xml(22));
    check_unreadable("<r/><?x?>", "m", Unreadable::BehindEnd { at: 4 });
    check_unreadable("<r><?x?></r>", "m", Unreadable::Instruction { at: 3 });
    check_unreadable("<r/><r/>", "m", Unreadable::BehindEnd { at: 4 });
    check_unreadable(
        " <?xml version='1.0'?><r/>",
        "m",
        Unreadable::Instruction { at: 1 },
    );
    check(
        "<r a = \"1\" b='&lt;>'><x c='' /><y>a ]] b</y></r >",
        "m",
        None,
    );
}

#[test]
fn elements_may_be_64_deep() {
    let nested = |depth: usize| "<a>".repeat(depth) + &"</a>".repeat(depth);
    check(&nested(64), "m", None);
    check_unreadable(&nested(65), "m", Unreadable::TooDeep);
}
