#include "grammar/json_formats.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace foredraft {
namespace {

// RFC 3339, with the lengths of the months and the leap years of the Gregorian calendar; no leap seconds.
constexpr char kDate[] =
    R"((?:\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8])))"
    R"(|(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29))";
constexpr char kTime[] =
    R"((?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,9})?(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d))";
// RFC 3339 appendix A.
constexpr char kDuration[] = R"(P(?:\d{1,9}W|(?:DATE(?:T(?:TIME))?|T(?:TIME))))";
constexpr char kDurationDate[] = R"((?:\d{1,9}Y(?:\d{1,9}M(?:\d{1,9}D)?)?|\d{1,9}M(?:\d{1,9}D)?|\d{1,9}D))";
constexpr char kDurationTime[] = R"((?:\d{1,9}H(?:\d{1,9}M(?:\d{1,9}S)?)?|\d{1,9}M(?:\d{1,9}S)?|\d{1,9}S))";
// RFC 1123. At most 253 characters: up to 4 long labels, or up to 10 of 24 characters. RFC 5891 reserves "--"
// at places 3 and 4, as in "xn--" before Punycode, which no regular expression can check: such labels are
// left out.
constexpr char kHostname[] = R"((?:LONG(?:\.LONG){0,3}|SHORT(?:\.SHORT){0,9}))";
constexpr char kLabel[] =
    R"([A-Za-z0-9](?:[A-Za-z0-9]|[A-Za-z0-9-]{1,2}[A-Za-z0-9]|[A-Za-z0-9-](?:[A-Za-z0-9][A-Za-z0-9-]|-[A-Za-z0-9])[A-Za-z0-9-]{0,REST}[A-Za-z0-9])?)";
// RFC 5321 without quoted local parts and address literals.
constexpr char kEmail[] =
    R"([A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,20}(?:\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,20}){0,2}@HOST)";
constexpr char kIpv4[] = R"((?:(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)\.){3}(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d))";
constexpr char kUuid[] = R"([0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12})";
// RFC 3986, and RFC 3987 where UCS is not empty. The first segment of a reference without a scheme has no
// colon.
constexpr char kUri[] = R"((?:SCHEME:(?:HIERARCHY|PCHAR+(?:/PCHAR*)*|)TAIL))";
constexpr char kUriReference[] = R"((?:URI|(?:HIERARCHY|NOCOLON+(?:/PCHAR*)*|)TAIL))";
constexpr char kUriHierarchy[] = R"((?://AUTHORITY(?:/PCHAR*)*|/(?:PCHAR+(?:/PCHAR*)*)?))";
constexpr char kUriTail[] = R"((?:\?QUERY*)?(?:#QUERY*)?)";
constexpr char kAuthority[] =
    R"((?:(?:[A-Za-z0-9._~!$&'()*+,;=:UCS-]|%[0-9A-Fa-f]{2})*@)?(?:\[IPV6\]|(?:[A-Za-z0-9._~!$&'()*+,;=UCS-]|%[0-9A-Fa-f]{2})*)(?::\d{0,5})?)";
constexpr char kPchar[] = R"((?:[A-Za-z0-9._~!$&'()*+,;=:@UCS-]|%[0-9A-Fa-f]{2}))";
constexpr char kNoColon[] = R"((?:[A-Za-z0-9._~!$&'()*+,;=@UCS-]|%[0-9A-Fa-f]{2}))";
constexpr char kQuery[] = R"((?:[A-Za-z0-9._~!$&'()*+,;=:@/?UCS-]|%[0-9A-Fa-f]{2}))";
// RFC 6570.
constexpr char kUriTemplate[] =
    R"((?:[!#$&(-;=?-\[\]_a-z~UCS]|%[0-9A-Fa-f]{2}|\{[+#./;?&=,!@|]?VARIABLE(?:,VARIABLE)*\})*)";
constexpr char kTemplateVariable[] =
    R"((?:\w|%[0-9A-Fa-f]{2})(?:\.?(?:\w|%[0-9A-Fa-f]{2}))*(?::[1-9]\d{0,3}|\*)?)";
// RFC 6901, and the draft of relative pointers that JSON Schema names.
constexpr char kJsonPointer[] = R"((?:/(?:[^~/]|~[01])*)*)";
constexpr char kRelativeJsonPointer[] = R"((?:0|[1-9]\d{0,9})(?:#|POINTER))";

// RFC 4291: eight groups of four digits, the last two perhaps an IPv4 address, one run of zeros perhaps left
// out.
std::string Ipv6() {
  const std::string group = "[0-9A-Fa-f]{1,4}";
  const auto groups = [&](int count) { return "(?:" + group + ":){" + std::to_string(count) + "}"; };
  const std::string last = "(?:" + group + ":" + group + "|" + std::string(kIpv4) + ")";
  std::string all = groups(6) + last;
  for (int before = 0; before <= 7; ++before) {
    // `before` groups, "::", and at most 7 - before groups after it.
    const std::string head = before == 0 ? ":" : groups(before);
    std::string tails;
    for (int after = 1; after <= 7 - before; ++after) {
      tails += "|" + (after == 1 ? group : groups(after - 2) + last);
    }
    all += "|" + head + ":(?:" + tails.substr(tails.empty() ? 0 : 1) + ")" + (tails.empty() ? "" : "?");
  }
  return "(?:" + all + ")";
}

// RFC 3987's characters beyond ASCII (ucschar), for a character class: all planes, without the last two code
// points of each, surrogates, private use and non-characters.
std::string Ucs() {
  std::string ranges = R"(\u00A0-\uD7FF\uF900-\uFDCF\uFDF0-\uFFEF)";
  for (int plane = 1; plane <= 14; ++plane) {
    absl::StrAppendFormat(&ranges, R"(\u{%X}-\u{%X})", plane << 16 | (plane == 14 ? 0x1000 : 0),
                          plane << 16 | 0xFFFD);
  }
  return ranges;
}

// `ucs`: the characters beyond ASCII.
std::string UriExpression(std::string expression, const std::string& ucs) {
  absl::StrReplaceAll({{"URI", kUri}}, &expression);
  absl::StrReplaceAll(
      {{"SCHEME", "[A-Za-z][A-Za-z0-9+.-]*"}, {"HIERARCHY", kUriHierarchy}, {"TAIL", kUriTail}}, &expression);
  absl::StrReplaceAll(
      {{"AUTHORITY", kAuthority}, {"PCHAR", kPchar}, {"NOCOLON", kNoColon}, {"QUERY", kQuery}}, &expression);
  absl::StrReplaceAll({{"IPV6", Ipv6()}, {"UCS", ucs}}, &expression);
  return expression;
}

std::string Hostname() {
  return absl::StrReplaceAll(kHostname, {{"LONG", absl::StrReplaceAll(kLabel, {{"REST", "58"}})},
                                         {"SHORT", absl::StrReplaceAll(kLabel, {{"REST", "19"}})}});
}

std::string LabelUpTo(int64_t length) {
  return absl::StrReplaceAll(kLabel, {{"REST", std::to_string(length - 5)}});
}

// A host name of at most `length` characters, 24 or more: one label, or several of up to 24.
std::string HostnameUpTo(int64_t length) {
  constexpr int64_t kShort = 24;
  const int64_t count = std::min<int64_t>(10, (length + 1) / (kShort + 1));
  return absl::StrFormat(R"((?:%s|%s(?:\.%s){0,%d}))", LabelUpTo(std::min<int64_t>(63, length)),
                         LabelUpTo(kShort), LabelUpTo(kShort), count - 1);
}

std::string EmailUpTo(int64_t length) {
  const int64_t word = std::min<int64_t>(20, (length / 2 - 2) / 3);
  std::string expression = kEmail;
  absl::StrReplaceAll({{"{1,20}", absl::StrFormat("{1,%d}", word)}}, &expression);
  return absl::StrReplaceAll(expression, {{"HOST", HostnameUpTo(length - (3 * word + 2) - 1)}});
}

// scheme://host/path?query#fragment without escapes.
std::string UriUpTo(int64_t length) {
  const int64_t host = std::min<int64_t>(63, length / 4);
  const int64_t rest = length - 10 - 3 - host - 3;
  const int64_t query = rest / 4, fragment = rest / 4, path = rest - query - fragment;
  return absl::StrFormat(
      R"([A-Za-z][A-Za-z0-9+.-]{0,9}://[A-Za-z0-9.-]{1,%d}(?:/[A-Za-z0-9._~!$&'()*+,;=:@/-]{0,%d})?(?:\?[A-Za-z0-9._~!$&'()*+,;=:@/?-]{0,%d})?(?:#[A-Za-z0-9._~!$&'()*+,;=:@/?-]{0,%d})?)",
      host, path, query, fragment);
}

std::string Whole(const std::string& expression) { return "^(?:" + expression + ")$"; }

}  // namespace

std::optional<std::string> FormatExpression(std::string_view format) {
  if (format == "date") return Whole(kDate);
  if (format == "time") return Whole(kTime);
  if (format == "date-time") return Whole(absl::StrCat(kDate, "T", kTime));
  if (format == "duration") {
    return Whole(absl::StrReplaceAll(kDuration, {{"DATE", kDurationDate}, {"TIME", kDurationTime}}));
  }
  if (format == "hostname") return Whole(Hostname());
  if (format == "email") return Whole(absl::StrReplaceAll(kEmail, {{"HOST", Hostname()}}));
  if (format == "ipv4") return Whole(kIpv4);
  if (format == "ipv6") return Whole(Ipv6());
  if (format == "uuid") return Whole(kUuid);
  if (format == "uri") return Whole(UriExpression(kUri, ""));
  if (format == "uri-reference") return Whole(UriExpression(kUriReference, ""));
  if (format == "iri") return Whole(UriExpression(kUri, Ucs()));
  if (format == "iri-reference") return Whole(UriExpression(kUriReference, Ucs()));
  if (format == "uri-template") {
    return Whole(absl::StrReplaceAll(kUriTemplate, {{"VARIABLE", kTemplateVariable}, {"UCS", Ucs()}}));
  }
  if (format == "json-pointer") return Whole(kJsonPointer);
  if (format == "relative-json-pointer") {
    return Whole(absl::StrReplaceAll(kRelativeJsonPointer, {{"POINTER", kJsonPointer}}));
  }
  return std::nullopt;
}

std::optional<std::string> BoundedFormatExpression(std::string_view format, int64_t min_length,
                                                   int64_t max_length) {
  // Below these lengths a host would have fewer than four labels. ShortFormatExpression serves those.
  constexpr int64_t kLeastHost = 100, kLeastEmail = 200, kLeastUri = 48, kMost = 10'000;
  max_length = std::min(max_length, kMost);
  if (format == "hostname" && min_length <= 1 && max_length >= kLeastHost)
    return Whole(HostnameUpTo(max_length));
  if (format == "email" && min_length <= 3 && max_length >= kLeastEmail) return Whole(EmailUpTo(max_length));
  const bool is_uri =
      format == "uri" || format == "uri-reference" || format == "iri" || format == "iri-reference";
  if (is_uri && min_length <= 5 && max_length >= kLeastUri) return Whole(UriUpTo(max_length));
  return std::nullopt;
}

std::optional<std::string> ShortFormatExpression(std::string_view format) {
  const std::string label = absl::StrReplaceAll(kLabel, {{"{0,REST}", "*"}});
  const std::string host = absl::StrFormat(R"(%s(?:\.%s)*)", label, label);
  if (format == "hostname") return Whole(host);
  if (format != "email") return std::nullopt;
  std::string email = absl::StrReplaceAll(kEmail, {{"{1,20}", "+"}, {"{0,2}", "*"}});
  return Whole(absl::StrReplaceAll(email, {{"HOST", host}}));
}

bool IsRefusedFormat(std::string_view format) {
  return format == "regex" || format == "idn-email" || format == "idn-hostname";
}

}  // namespace foredraft
