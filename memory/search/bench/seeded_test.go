package bench_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"sallyport/memory/search/bench"
)

var people = []string{"Amara", "Bruno", "Chiara", "Dmitri", "Elif", "Farouk", "Greta", "Hiro"}

// topics are what each of the people tells once: what is asked before, what is told, what
// the question is in other words, and a value for each.
var topics = []struct{ prompt, told, question, values string }{
	{"Anything new at home?", "We adopted a %s from the shelter last weekend.", "Which animal did NAME get by adoption?", "beagle,parrot,tortoise,ferret,hamster,kitten,lizard,goldfish"},
	{"Can I cook something for you?", "Sure, but %s make my throat swell, I am allergic.", "What must never be served to NAME because of an allergy?", "walnuts,shrimps,peaches,lentils,eggs,cashews,mussels,kiwis"},
	{"Do you play anything?", "I have been practising the %s every evening.", "Which instrument does NAME practise?", "cello,oboe,harp,banjo,trumpet,accordion,violin,drum"},
	{"Where will you go this summer?", "I am travelling to %s with my cousins.", "What is the destination of NAME's travels with the cousins?", "Lisbon,Oslo,Kyoto,Quito,Dakar,Perth,Tbilisi,Hanoi"},
	{"How was work?", "They promoted me, I lead the %s team now.", "After the promotion, which team is NAME leading?", "billing,design,security,payroll,research,support,logistics,translation"},
	{"What did the doctor say?", "My %s is injured, so no running for six weeks.", "Which injury keeps NAME from running?", "ankle,knee,hip,shin,heel,toe,calf,back"},
	{"Did you read anything good?", "I finished a novel about %s yesterday.", "What was the novel about that NAME was reading?", "pirates,beekeepers,glaciers,spies,lighthouses,chess,comets,monks"},
	{"What is for dinner?", "I am baking %s for my parents.", "What did NAME bake when the parents came?", "focaccia,quiche,lasagne,pretzels,strudel,baklava,pie,brioche"},
	{"How do you get to the office?", "My bicycle was stolen, so I commute by %s.", "Since the theft of the bike, how does NAME do the commuting?", "tram,ferry,scooter,bus,skateboard,train,taxi,metro"},
	{"Any plans for the garden?", "We planted %s along the fence.", "What are the plants beside NAME's fence?", "lavender,tulips,raspberries,sunflowers,peas,roses,ivy,pumpkins"},
	{"How is your sister?", "She is studying %s at the university.", "Which subject does the sister of NAME study?", "law,botany,geology,nursing,philosophy,statistics,linguistics,robotics"},
	{"What are you saving for?", "I want to buy a %s by next spring.", "What does NAME hope to have bought when spring comes?", "canoe,telescope,piano,motorbike,greenhouse,camper,loom,kiln"},
	{"Which editor do you use?", "I set everything up in %s with a dark theme.", "Which editing program has NAME set up with dark colours?", "Emacs,Vim,Zed,Nano,Helix,Kakoune,Eclipse,Xcode"},
	{"How should reports look?", "Please always send them as %s, never by fax.", "In which format does NAME want reports to be sent?", "PDF,spreadsheets,slides,Markdown,plaintext,LaTeX,HTML,postcards"},
	{"Where did you grow up?", "My childhood was in a village near %s.", "Near which town was the village where NAME was a child?", "Bergen,Siena,Cork,Graz,Split,Bruges,Malmo,Cadiz"},
	{"What did the mechanic find?", "The %s had to be replaced, it cost a fortune.", "What part did NAME's mechanic have replacing to do on, at great costs?", "clutch,radiator,alternator,gearbox,exhaust,starter,battery,windscreen"},
	{"Are you learning anything?", "I have begun %s lessons on Tuesdays.", "On Tuesdays NAME learns something: which lesson is it?", "pottery,archery,Arabic,fencing,sailing,calligraphy,salsa,judo"},
	{"What did you lose?", "I left my %s on the bench at the station.", "Which thing did NAME leave at a station?", "umbrella,passport,scarf,laptop,gloves,wallet,sketchbook,hat"},
	{"What did the children want?", "They begged for a birthday cake shaped like a %s.", "What shape had the cakes for the birthday of NAME's children?", "dragon,rocket,castle,dinosaur,tractor,unicorn,whale,robot"},
	{"How did the server fail?", "The %s filled up and the deployment crashed.", "What was full when NAME's deploy was crashing?", "disk,queue,cache,swap,log,inbox,heap,quota"},
}

var smalltalk = []string{
	"The weather has been strange, did you notice?", "What a week it was, I am so tired.", "My neighbour plays loud music again.",
	"Let us have lunch together soon.", "I should call my parents more often.", "The train was late again on Tuesday.", "Did you see the match last night?",
	"I never know which book to read next.", "My team has too many meetings.", "That sounds wonderful, tell me more!", "I was running late all day.",
	"Which plans do you have for the weekend?", "My sister says hello.", "The station was crowded.", "I need a holiday, and a cake.", "We must leave early tomorrow.",
}

// seeded is a data set in LoCoMo's format: 40 sessions in which eight people tell twenty
// things each, and a question in other words about each of the 160.
func seeded(t *testing.T) string {
	conversation := map[string]any{}
	type qa struct {
		Question string   `json:"question"`
		Evidence []string `json:"evidence"`
	}
	var questions []qa
	small := 0
	for s := range 40 {
		person, other := people[s%8], people[(s+1+s/8)%8]
		var turns []map[string]string
		say := func(who, text string) string {
			id := fmt.Sprintf("D%d:%d", s+1, len(turns)+1)
			turns = append(turns, map[string]string{"speaker": who, "dia_id": id, "text": text})
			return id
		}
		say(other, "Hi "+person+", how are you?")
		for n := range 4 {
			topic := topics[(s/8)*4+n]
			for range 3 {
				small += 5
				who := person
				if small%2 == 0 {
					who = other
				}
				say(who, smalltalk[small%len(smalltalk)])
			}
			say(other, topic.prompt)
			id := say(person, fmt.Sprintf(topic.told, strings.Split(topic.values, ",")[s%8]))
			questions = append(questions, qa{strings.ReplaceAll(topic.question, "NAME", person), []string{id}})
		}
		conversation[fmt.Sprintf("session_%d", s+1)] = turns
		conversation[fmt.Sprintf("session_%d_date_time", s+1)] = fmt.Sprintf("10:00 am on %d %s, 2026", 1+s%28, []string{"March", "April"}[s/28])
	}
	data, err := json.Marshal([]any{map[string]any{"conversation": conversation, "qa": questions}})
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestSeeded(t *testing.T) {
	r, err := bench.Run(t.Context(), strings.NewReader(seeded(t)), bench.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if r.Sessions < 40 || r.Questions < 150 {
		t.Fatalf("%d sessions, %d questions", r.Sessions, r.Questions)
	}
	ours, beaten := map[string]bench.Result{}, map[string]int{}
	for _, x := range r.Results {
		t.Logf("%-8s %-8s hit@1 %.3f hit@5 %.3f hit@10 %.3f MRR %.3f", x.Level, x.Method, x.Hit1, x.Hit5, x.Hit10, x.MRR)
		if x.Method == "index" {
			ours[x.Level] = x
		} else if o := ours[x.Level]; o.Hit1 <= x.Hit1 || o.Hit5 <= x.Hit5 || o.Hit10 <= x.Hit10 || o.MRR <= x.MRR {
			t.Errorf("by %s, %s is as good as the index", x.Level, x.Method)
		} else {
			beaten[x.Method]++
		}
	}
	for _, method := range []string{"grep", "recency", "random"} {
		if beaten[method] != 2 {
			t.Errorf("the index is compared with %s by %d levels", method, beaten[method])
		}
	}
	if o := ours["session"]; o.Hit1 < 0.7 || o.Hit5 < 0.95 {
		t.Errorf("by session: %+v", o)
	}
	if o := ours["turn"]; o.Hit5 < 0.85 {
		t.Errorf("by turn: %+v", o)
	}
}
