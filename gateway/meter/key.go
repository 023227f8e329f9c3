package meter

// key is a name that means something, where it stands in the right place; zero is
// any other.
type key uint8

const (
	kModel key = iota + 1
	kModelAlike
	kModelVersion
	kType
	kUsage
	kHolder  // of a usage
	kDetails // of a usage's input
	kEnvelope

	kInput
	kOutput
	kThoughts
	kToolInput
	kTotal
	kCached
	kRead // from a cache, beside the input
	kWritten
	kMade // in a cache, beside the input
	kLast
)

// slots are the keys whose values are counted.
const slots = int(kLast - kInput)

// envelope tells whether a string of that name is never a model's text.
func (k key) envelope() bool {
	return k == kModel || k == kModelVersion || k == kType || k == kEnvelope
}

// keys are the names as providers write them.
var keys = map[string]key{
	"model":        kModel,
	"modelVersion": kModelVersion, // Gemini
	"type":         kType,

	"usage":         kUsage,
	"usageMetadata": kUsage,  // Gemini
	"message":       kHolder, // Anthropic's message_start
	"response":      kHolder, // events of OpenAI's Responses
	"x_groq":        kHolder,

	"prompt_tokens":        kInput, // OpenAI, Mistral and most others
	"input_tokens":         kInput, // OpenAI's Responses, Anthropic
	"promptTokenCount":     kInput, // Gemini
	"inputTokens":          kInput, // Bedrock's Converse
	"completion_tokens":    kOutput,
	"output_tokens":        kOutput,
	"candidatesTokenCount": kOutput,
	"responseTokenCount":   kOutput,
	"outputTokens":         kOutput,

	"thoughtsTokenCount":      kThoughts,
	"toolUsePromptTokenCount": kToolInput,
	"total_tokens":            kTotal,
	"totalTokenCount":         kTotal,
	"totalTokens":             kTotal,

	"prompt_tokens_details":   kDetails,
	"input_tokens_details":    kDetails,
	"cached_tokens":           kCached,
	"cache_write_tokens":      kWritten,
	"cachedContentTokenCount": kCached,

	"cache_read_input_tokens":     kRead,
	"cacheReadInputTokens":        kRead,
	"cache_creation_input_tokens": kMade,
	"cacheWriteInputTokens":       kMade,

	"id": kEnvelope, "object": kEnvelope, "system_fingerprint": kEnvelope, "service_tier": kEnvelope, "role": kEnvelope,
	"finish_reason": kEnvelope, "finishReason": kEnvelope, "stop_reason": kEnvelope, "item_id": kEnvelope,
	"response_id": kEnvelope, "responseId": kEnvelope, "obfuscation": kEnvelope, "status": kEnvelope,
}
