package finding

import (
	"cmp"
	"slices"
)

// Kind is the stable identifier of what a Finding is about: see
// docs/policy/check.md, which has an entry for each. An identifier is never used
// again for something else.
type Kind string

const (
	Unreadable  Kind = "SP0001"
	NotYAML     Kind = "SP0002"
	UnknownKey  Kind = "SP0003"
	WrongType   Kind = "SP0004"
	YAMLFeature Kind = "SP0005"
	BadValue    Kind = "SP0006" // of what has no Kind of its own

	BadDestination Kind = "SP0101"
	BadPort        Kind = "SP0102"
	BadAction      Kind = "SP0103"
	BadName        Kind = "SP0104"
	NeverMatches   Kind = "SP0105"
	Shadowed       Kind = "SP0106"
	Repeated       Kind = "SP0107"
	Governed       Kind = "SP0108"
	AnyDomain      Kind = "SP0109"
	AnyTenant      Kind = "SP0110"
	AnyPath        Kind = "SP0111"
	BadUpstream    Kind = "SP0112"
	LoginInClear   Kind = "SP0113"
	Tunnelled      Kind = "SP0114"
	Clear          Kind = "SP0115"
	ObserveOver    Kind = "SP0116"
	BodyUnseen     Kind = "SP0117"
	PortWithoutTLS Kind = "SP0118"

	NoCredential     Kind = "SP0201"
	UnusedCredential Kind = "SP0202"
	BadCredential    Kind = "SP0203"
	BadInject        Kind = "SP0204"
	SecretWritten    Kind = "SP0205"
	OnePlace         Kind = "SP0206"
	ToAnyTenant      Kind = "SP0207"
	ToAnyNamespace   Kind = "SP0208"
	NotBound         Kind = "SP0209"

	RegoSyntax    Kind = "SP0301"
	RegoType      Kind = "SP0302"
	Withheld      Kind = "SP0303"
	OtherPackage  Kind = "SP0304"
	NoSet         Kind = "SP0305"
	Misspelt      Kind = "SP0306"
	RegoStrict    Kind = "SP0307"
	RegoCompile   Kind = "SP0308"
	NeverHolds    Kind = "SP0309"
	Unconditional Kind = "SP0310"
	InTest        Kind = "SP0311"
	BadData       Kind = "SP0312"
	RequestOnly   Kind = "SP0313"
	NothingKept   Kind = "SP0314"

	BadBundle       Kind = "SP0401"
	UnsignedBundle  Kind = "SP0402"
	UncheckedBundle Kind = "SP0403"

	BadLimit Kind = "SP0501"
	NeverMet Kind = "SP0502"
	BadPrice Kind = "SP0503"
	NoPrice  Kind = "SP0504"
)

// Meaning is what a Kind stands for.
type Meaning struct {
	Kind     Kind
	Severity Severity // as it is unless a Finding says otherwise
	Name     string   // for people: one word of code scanners
	Title    string   // one sentence
}

// meanings has every Kind, in their order.
var meanings = []Meaning{
	{Unreadable, Error, "UnreadableFile", "A file or folder cannot be read."},
	{NotYAML, Error, "NotYAML", "The configuration is not YAML."},
	{UnknownKey, Error, "UnknownKey", "A key that nobody reads, most likely misspelt."},
	{WrongType, Error, "WrongType", "A value of another type than the key's."},
	{YAMLFeature, Error, "UnusedYAML", "A feature of YAML that is not read here."},
	{BadValue, Error, "BadValue", "A value that cannot be used."},

	{BadDestination, Error, "BadDestination", "A destination that is no host, address or prefix."},
	{BadPort, Error, "BadPort", "A port that is none, or is written twice."},
	{BadAction, Error, "BadAction", "An action that there is not."},
	{BadName, Error, "BadName", "A rule's name that is taken or cannot be shown."},
	{NeverMatches, Error, "NeverMatches", "A rule that no request can match."},
	{Shadowed, Warning, "Shadowed", "A rule that never decides, because another always comes first."},
	{Repeated, Warning, "Repeated", "A rule that says nothing which another does not say."},
	{Governed, Warning, "Governed", "An egress rule whose destination an egressAuth rule governs."},
	{AnyDomain, Warning, "AnyDomain", "A wildcard over names that anybody can register."},
	{AnyTenant, Warning, "AnyTenant", "A wildcard over a hosting domain where anybody can have a name."},
	{AnyPath, Warning, "AnyPath", "A host that holds everybody's content by path, without paths."},
	{BadUpstream, Error, "BadUpstream", "An upstream that cannot be used."},
	{LoginInClear, Warning, "LoginInClear", "A proxy's login that crosses the network in the clear."},
	{Tunnelled, Note, "Tunnelled", "A tunnel, whose bytes pass unread."},
	{Clear, Note, "InTheClear", "Requests without TLS."},
	{ObserveOver, Warning, "ObserveOver", "Observe mode that has ended."},
	{BodyUnseen, Warning, "BodyUnseen", "A rule that asks for bodies that no Rego looks at."},
	{PortWithoutTLS, Warning, "PortWithoutTLS", "A rule for port 80 that does not allow HTTP without TLS."},

	{NoCredential, Error, "NoCredential", "A reference to a credential that is not there."},
	{UnusedCredential, Warning, "UnusedCredential", "A credential that no rule uses."},
	{BadCredential, Error, "BadCredential", "A credential that cannot be used."},
	{BadInject, Error, "BadInject", "An injection that cannot be made."},
	{SecretWritten, Error, "SecretWritten", "An injection with nothing of the secret in it: most likely the secret itself."},
	{OnePlace, Error, "OnePlace", "Two credentials for one place of the same requests."},
	{ToAnyTenant, Warning, "ToAnyTenant", "A credential for every host of a domain where anybody can have one."},
	{ToAnyNamespace, Warning, "ToAnyNamespace", "A credential for pods with a label, which those of any namespace can have."},
	{NotBound, Error, "NotBound", "A rule that gives a credential where, or how, it may not be given."},

	{RegoSyntax, Error, "RegoSyntax", "Rego that cannot be parsed."},
	{RegoType, Error, "RegoType", "Rego that contradicts the schema of input, or a type."},
	{Withheld, Error, "Withheld", "A built-in function that policies do not have: http.send and its kin."},
	{OtherPackage, Error, "OtherPackage", "A package that is not below sallyport.team."},
	{NoSet, Error, "NoSet", "A deny, approve, allow or inject that is no set, or has no meaning yet."},
	{Misspelt, Warning, "Misspelt", "A rule named almost as one of the sets, which nothing uses."},
	{RegoStrict, Error, "RegoStrict", "Rego that the strict mode refuses."},
	{RegoCompile, Error, "RegoCompile", "Rego that cannot be compiled."},
	{NeverHolds, Warning, "NeverHolds", "A condition that can never hold."},
	{Unconditional, Warning, "Unconditional", "An allow without a condition on where or what."},
	{InTest, Error, "InTest", "A set in a test file, which takes part in no decision."},
	{BadData, Error, "BadData", "A file of data that cannot be used."},
	{RequestOnly, Warning, "RequestOnly", "An allow that no request can reach, because no connection is allowed."},
	{NothingKept, Note, "NothingKept", "Rego that reads the clock, so that no answer is kept."},

	{BadBundle, Error, "BadBundle", "A bundle that cannot be used."},
	{UnsignedBundle, Warning, "UnsignedBundle", "A bundle that nobody has signed."},
	{UncheckedBundle, Note, "UncheckedBundle", "A bundle on a server, which is checked when it is fetched."},

	{BadLimit, Error, "BadLimit", "A limit that cannot be counted, or limits nothing."},
	{NeverMet, Warning, "NeverMet", "A limit that nothing falls under."},
	{BadPrice, Error, "BadPrice", "A price of no model, or of nothing."},
	{NoPrice, Error, "NoPrice", "A limit of cost where nothing has a price."},
}

// Meanings lists every Kind.
func Meanings() []Meaning { return slices.Clone(meanings) }

// meaning returns what k stands for; BadValue for what is no Kind.
func (k Kind) meaning() Meaning {
	i, found := slices.BinarySearchFunc(meanings, k, func(m Meaning, k Kind) int { return cmp.Compare(m.Kind, k) })
	if !found {
		return BadValue.meaning()
	}
	return meanings[i]
}

// Finding is a Finding of a Kind, as severe as those are.
func (k Kind) Finding(at Position, path, message, fix string) Finding {
	return Finding{Kind: k, Severity: k.meaning().Severity, Position: at, Path: path, Message: message, Fix: fix}
}
